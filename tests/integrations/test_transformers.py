"""Models of transformers, full and with adapters: the fast engine, the reference, training."""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.clipping.comparing import by_loop, distance
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import dither
from dither.clipping import FallbackWarning, clipped_sum
from dither.integrations.transformers import (
    IGNORE_INDEX,
    causal_losses,
    classification_losses,
    pad_documents,
    prepare,
)

WORDS, LENGTH = 40, 10


@pytest.fixture(autouse=True)
def _same_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def bert(dropout: float = 0.0) -> Any:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=LENGTH, num_labels=3,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def distilbert() -> Any:
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=24, dropout=0.0,
            attention_dropout=0.0, seq_classif_dropout=0.0, max_position_embeddings=LENGTH,
            num_labels=3,
        )
    )  # fmt: skip


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=24, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "bert": (bert, ["query", "value"]),
    "distilbert": (distilbert, ["q_lin", "v_lin"]),
    "gpt2": (gpt2, ["c_attn"]),
    "llama": (llama, ["q_proj", "v_proj", "down_proj"]),
}


def adapted(model: Any, layers: list[str], dropout: float = 0.0) -> Any:
    is_classifier = hasattr(model, "classifier")
    model = get_peft_model(
        model,
        LoraConfig(
            task_type="SEQ_CLS" if is_classifier else "CAUSAL_LM", r=3, target_modules=layers,
            lora_dropout=dropout, fan_in_fan_out=isinstance(model, GPT2LMHeadModel),
        ),
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, so that lora_A would have no gradient
            nn.init.normal_(parameter, std=0.3)
    return model


def made(name: str, how: str) -> nn.Module:
    make, layers = MODELS[name]
    model = make()
    return prepare(adapted(model, layers) if how == "lora" else model).train()


def documents(count: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (count,), generator=generator)
    return pad_documents(
        [w[:n].tolist() for w, n in zip(words, lengths, strict=True)], length=LENGTH
    )


def data(name: str, count: int) -> tuple[dict[str, Tensor], Tensor, Any]:
    inputs = documents(count)
    if name in ("bert", "distilbert"):
        return inputs, torch.arange(count) % 3, classification_losses
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE_INDEX)
    return inputs, labels, causal_losses


def a_plan(steps: int = 3, n: int = 60) -> dither.Plan:
    return dither.plan(epsilon=8.0, delta=1e-3, dataset_size=n, batch_size=8, steps=steps)


@pytest.mark.parametrize("how", ["full", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_fast_gradients_are_the_reference_s(name: str, how: str) -> None:
    in_double = name != "llama"  # which computes its norms in single precision whatever its type
    model = made(name, how).double() if in_double else made(name, how)
    close = 1e-9 if in_double else 1e-4
    inputs, targets, losses = data(name, 6)
    _, norms = by_loop(model, losses, inputs, targets, float("inf"), 6)
    C = float(norms.median())
    fast = clipped_sum(model, losses, inputs, targets, clip_norm=C)  # a fallback is an error
    slow = clipped_sum(model, losses, inputs, targets, clip_norm=C, engine="reference")
    assert set(fast.gradients) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert distance(fast.gradients, slow.gradients) < close
    assert distance(fast.gradients, by_loop(model, losses, inputs, targets, C, 6)[0]) < close
    assert torch.allclose(fast.norms, slow.norms, rtol=close)


@pytest.mark.parametrize("name", MODELS)
def test_prepare_changes_no_output(name: str) -> None:
    model = MODELS[name][0]().eval()
    inputs = documents(5)
    before = model(**inputs).logits
    after = prepare(model)(**inputs).logits
    assert torch.allclose(before, after, atol=1e-6)


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
@pytest.mark.parametrize("how", ["full", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_unprepared_models_have_the_same_gradients(name: str, how: str) -> None:
    make, layers = MODELS[name]
    torch.manual_seed(1)
    model = adapted(make(), layers) if how == "lora" else make()
    inputs, targets, losses = data(name, 6)
    for n in (6, 5):
        batch, wanted = {key: value[:n] for key, value in inputs.items()}, targets[:n]
        found = clipped_sum(model, losses, batch, wanted, clip_norm=1.0)
        expected, _ = by_loop(model, losses, batch, wanted, 1.0, n)
        assert distance(found.gradients, expected) < 1e-4
    prepared = clipped_sum(prepare(model), losses, batch, wanted, clip_norm=1.0)
    assert distance(prepared.gradients, expected) < 1e-4


@pytest.mark.parametrize("records", [1, LENGTH, 2 * LENGTH])
def test_batches_as_long_as_documents_are_right(records: int) -> None:
    model = made("bert", "full")
    inputs, targets, losses = data("bert", records)
    fast = clipped_sum(model, losses, inputs, targets, clip_norm=1.0)
    expected, _ = by_loop(model, losses, inputs, targets, 1.0, records)
    assert distance(fast.gradients, expected) < 1e-4


@pytest.mark.parametrize("how", ["full", "lora"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_checkpointing_gives_the_same(name: str, how: str) -> None:
    model = made(name, how)
    inputs, targets, losses = data(name, 5)
    plain = clipped_sum(model, losses, inputs, targets, clip_norm=1.0)
    again: Any = deepcopy(model)
    again.gradient_checkpointing_enable()
    found = clipped_sum(again, losses, inputs, targets, clip_norm=1.0)
    assert distance(found.gradients, plain.gradients) < 1e-4


def test_a_document_s_loss_is_its_own() -> None:
    model = made("llama", "full").eval()
    inputs, labels, _ = data("llama", 6)
    together = causal_losses(model(**inputs), labels)
    sums = causal_losses(model(**inputs), labels, reduction="sum")
    for i in range(6):
        n = int(inputs["attention_mask"][i].sum())
        alone = {key: value[i : i + 1, :n] for key, value in inputs.items()}
        expected = model(**alone, labels=alone["input_ids"]).loss
        assert torch.allclose(together[i], expected, atol=1e-5)
        assert torch.allclose(sums[i], expected * (n - 1), atol=1e-4)


def test_a_document_without_a_next_token_counts_for_nothing() -> None:
    model = made("gpt2", "full")
    inputs = pad_documents([[5], [3, 4, 5]], length=LENGTH)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE_INDEX)
    total = clipped_sum(model, causal_losses, inputs, labels, clip_norm=1.0)
    assert float(total.norms[0]) == 0.0 < float(total.norms[1])


@pytest.mark.parametrize("how", ["full", "lora"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_loop_of_one_s_own_takes_the_reference_s_steps(name: str, how: str) -> None:
    """Without noise, on all documents in every step, in microbatches."""
    inputs, targets, losses = data(name, 20)
    model = made(name, how)
    other = deepcopy(model)
    before = {n: p.clone() for n, p in model.named_parameters()}
    plan = dither.Plan.unsafe_without_noise(steps=3, dataset_size=20, batch_size=20, clip_norm=0.7)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    private = dither.make_private(model, optimizer, plan, (inputs, targets))
    for batch in private.batches():
        for part, labels in private.microbatches(batch, 7):
            private.backward(losses(private.model(**part), labels))
        private.optimizer.step()
        private.optimizer.zero_grad()
        total = clipped_sum(
            other, losses, inputs, targets, clip_norm=plan.clip_norm, engine="reference"
        )
        with torch.no_grad():
            for n, parameter in other.named_parameters():
                if parameter.requires_grad:
                    parameter.sub_(0.1 * total.gradients[n] / 20)
    assert private.step == 3
    wanted = dict(other.named_parameters())
    for n, parameter in model.named_parameters():
        assert torch.equal(parameter, before[n]) == (not parameter.requires_grad)
        assert torch.allclose(parameter, wanted[n], atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_train_takes_named_inputs_and_dropout(name: str) -> None:
    inputs, targets, losses = data(name, 60)
    model = prepare(adapted(bert(0.1) if name == "bert" else llama(), MODELS[name][1], 0.1)).train()
    public = dither.Public(data(name, 9)[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        result = dither.train(
            model, (inputs, targets), a_plan(), loss=losses, evaluate=public, progress=False
        )
    assert result.steps == 3
    assert result.bound.epsilon <= 8.0
    assert ("accuracy" in result.metrics) == (name == "bert")


def over_all_tokens(outputs: Any, labels: Tensor) -> Tensor:
    """Divides by a number that every document of the batch is part of, as transformers does."""
    wanted = (labels[:, 1:] != IGNORE_INDEX).sum()
    return causal_losses(outputs, labels, reduction="sum") * len(labels) / wanted


def test_losses_that_are_divided_by_all_tokens_of_a_batch_are_refused() -> None:
    inputs, labels, _ = data("llama", 60)
    with pytest.raises(ValueError, match="never by the number of records, tokens or weights"):
        # Seeded: by chance, both halves of the first batch have documents of the same mean length.
        dither.train(
            made("llama", "full"), (inputs, labels), a_plan(), loss=over_all_tokens,
            progress=False, seed=0,
        )  # fmt: skip


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="model must be or hold a model of transformers"):
        prepare(nn.Linear(2, 2))
    model: Any = bert()
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="attn_implementation"):
        prepare(model)
    with pytest.raises(ValueError, match="length must be"):
        pad_documents([[1]], length=0)
    with pytest.raises(ValueError, match="reduction must be"):
        causal_losses(None, torch.zeros(1, 2), reduction="none")


def private_loop(model: Any, inputs: Any, targets: Tensor, losses: Callable[..., Tensor]) -> None:
    """Take one step."""
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    private = dither.make_private(model, optimizer, a_plan(1), (inputs, targets), seed=3)
    for batch, wanted in private.batches():
        private.backward(losses(private.model, batch, wanted))
        private.optimizer.step()


def test_scalar_losses_are_refused() -> None:
    inputs, targets, _ = data("bert", 60)
    labels = data("gpt2", 60)[1]

    def mean_over_tokens(model: Any, batch: Any, wanted: Tensor) -> Tensor:
        logits = model(**batch).logits[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(logits, wanted[:, 1:], ignore_index=IGNORE_INDEX)

    message = "compute one loss per record from its logits"
    with pytest.raises(ValueError, match=message):
        private_loop(
            made("bert", "full"), inputs, targets, lambda model, b, y: model(**b, labels=y).loss
        )
    with pytest.raises(ValueError, match=message):
        private_loop(made("gpt2", "full"), inputs, labels, mean_over_tokens)


def test_labels_that_the_model_is_also_given_change_nothing() -> None:
    """The loss that the model computes from them is not used."""
    inputs, targets, _ = data("bert", 60)
    found = []
    for extra in (False, True):
        torch.manual_seed(0)
        model = made("bert", "full")
        private_loop(
            model,
            inputs,
            targets,
            lambda model, b, y, extra=extra: classification_losses(
                model(**b, labels=y) if extra else model(**b), y
            ),
        )
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(found[0], found[1])


def test_losses_of_the_wrong_kind() -> None:
    inputs, targets, _ = data("bert", 4)
    classified, written = made("bert", "full")(**inputs), made("gpt2", "full")(**inputs)
    with pytest.raises(TypeError, match="classification_losses is for classifiers, got 2 dim"):
        causal_losses(classified, inputs["input_ids"])
    with pytest.raises(TypeError, match="causal_losses is for language models, got 3 dim"):
        classification_losses(written, targets)
    with pytest.raises(TypeError, match="causal_losses is for language models, got none"):
        classification_losses(classified.logits, targets)
    with pytest.raises(TypeError, match="labels must be integers"):
        classification_losses(classified, targets.float())
    with pytest.raises(TypeError, match="documents must be lists of token ids, got a text"):
        pad_documents(["a text"], length=3)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="model must be a Module, got None"):
        prepare(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a name for SequenceClassifierOutput"):
        dither.train(made("bert", "full"), (documents(60), torch.arange(60) % 3), a_plan())


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
def test_half_precision_is_clipped_in_single() -> None:
    """A scale that multiplies, as Llama's norms have it, is no exception."""
    model = made("llama", "full").bfloat16()
    inputs, targets, losses = data("llama", 6)
    found = clipped_sum(model, losses, inputs, targets, clip_norm=0.01)
    assert {each.dtype for each in found.gradients.values()} == {torch.float32}
    total = torch.cat([each.flatten() for each in found.gradients.values()])
    assert 0.01 < float(total.norm()) <= 6 * 0.01 * 1.001
