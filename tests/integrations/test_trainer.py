"""PrivateTrainer: the same run as a loop of one's own, and nothing of the loss but where asked."""

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.distributed import launching
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    ConvBertConfig,
    ConvBertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    TrainingArguments,
)

import dither
from dither.integrations.transformers import (
    IGNORE_INDEX,
    PrivateTrainer,
    causal_losses,
    classification_losses,
    token_losses,
)
from dither.ledger import Ledger
from dither.training import Private, StepError
from dither.validate import InvalidTypeError, InvalidValueError

N, LENGTH, WORDS = 48, 8, 20
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def _same_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def bert(kind: Any = BertForSequenceClassification, **more: Any) -> Any:
    torch.manual_seed(1)
    return kind(
        BertConfig(
            vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, **{"num_labels": 3, **more},
        )
    )  # fmt: skip


def gpt2() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=LENGTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def t5() -> Any:
    torch.manual_seed(1)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
            dropout_rate=0.0, decoder_start_token_id=0,
        )
    )  # fmt: skip


def records(labels: str = "class", count: int = N) -> list[Record]:
    """Return documents of different lengths, padded to one, with labels of some kind."""
    generator = torch.Generator().manual_seed(2)
    made = []
    for i in range(count):
        size = int(torch.randint(3, LENGTH + 1, (), generator=generator))
        ids = torch.randint(1, WORDS, (LENGTH,), generator=generator)
        mask = (torch.arange(LENGTH) < size).long()
        ids *= mask
        tokens = ids.masked_fill(mask == 0, IGNORE_INDEX)
        of_kind: dict[str, Record] = {
            "class": {"labels": i % 3},
            "number": {"labels": i / N},
            "several": {"labels": [float(i % 2), float(i % 3 == 0), 1.0]},
            "tokens": {"labels": tokens},
            "tags": {"labels": tokens.clamp(max=2)},
            "answer": {"start_positions": i % 3, "end_positions": 2},
            "none": {},
        }
        made.append({"input_ids": ids, "attention_mask": mask, **of_kind[labels]})
    return made


def settings(path: Path, **more: Any) -> Any:
    usual = {
        "max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 0.01, "use_cpu": True,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(str(path), **{**usual, **more})


def without_noise(**more: Any) -> dither.Plan:
    return dither.Plan.unsafe_without_noise(
        **{"steps": 4, "dataset_size": N, "batch_size": 8, "clip_norm": 0.5, **more}
    )


def with_noise(steps: int = 4) -> dither.Plan:
    return dither.plan(epsilon=4.0, delta=1e-3, dataset_size=N, batch_size=8, steps=steps)


def parameters(model: Any) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    """Return what a seeded run without noise makes of the parameters."""
    model, path = bert(), tmp_path_factory.mktemp("usual")
    PrivateTrainer(
        model, settings(path), train_dataset=records(), plan=without_noise(), seed=3
    ).train()
    return parameters(model)


def own_loop(model: Any, plan: dither.Plan, data: list[Record], losses: Any) -> Private:
    """Train with make_private alone, by the optimizer that the Trainer makes."""
    decays = [p for name, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(decays, lr=0.01, weight_decay=0.0)
    private = dither.make_private(model, optimizer, plan, stacked(data), seed=3)
    for batch in private.batches():
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        private.backward(losses(private.model(**inputs), batch["labels"]))
        private.optimizer.step()
        private.optimizer.zero_grad()
    return private


def stacked(data: list[Record]) -> dict[str, Tensor]:
    return {k: torch.stack([torch.as_tensor(r[k]) for r in data]) for k in data[0]}


CASES = {
    "classification": (bert, "class", classification_losses),
    "causal": (gpt2, "tokens", causal_losses),
}


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_run_is_that_of_a_loop_of_one_s_own(
    case: str, microbatches: int, tmp_path: Path
) -> None:
    make, labels, losses = CASES[case]
    plan, data = without_noise(), records(labels)
    model, other = make().double(), make().double()  # Adam divides rounding errors by gradients
    before = parameters(model)
    args = settings(
        tmp_path, per_device_train_batch_size=8 // microbatches,
        gradient_accumulation_steps=microbatches, weight_decay=0.0,
    )  # fmt: skip
    trainer = PrivateTrainer(model, args, train_dataset=data, plan=plan, seed=3)
    trainer.train()
    own_loop(other, plan, data, losses)
    assert distance(before, parameters(model)) > 1e-3
    assert distance(parameters(model), parameters(other)) <= 1e-6


def test_a_run_with_noise_spends_what_a_loop_of_one_s_own_spends(tmp_path: Path) -> None:
    plan, data = with_noise(), records()
    model, other = bert(), bert()
    trainer = PrivateTrainer(model, settings(tmp_path), train_dataset=data, plan=plan, seed=3)
    trainer.train()
    private = own_loop(other, plan, data, classification_losses)
    assert trainer.private.spent() == private.spent() == plan.bound
    assert distance(parameters(model), parameters(other)) <= 1e-6
    assert Ledger(tmp_path).total(1e-3).epsilon == pytest.approx(plan.bound.epsilon, rel=0.02)


def test_a_budget_makes_the_plan_that_the_arguments_describe(tmp_path: Path) -> None:
    args = settings(
        tmp_path, max_steps=-1, num_train_epochs=2, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, max_grad_norm=0.3, optim="sgd", warmup_steps=2,
    )  # fmt: skip
    trainer = PrivateTrainer(bert(), args, train_dataset=records(), epsilon=2.0)
    plan = trainer.plan
    assert isinstance(plan, dither.Plan)
    assert (plan.steps, plan.batch_size, plan.dataset_size, plan.clip_norm) == (12, 8, N, 0.3)
    assert plan.bound.delta == 1 / (10 * N)
    assert plan.bound.epsilon <= 2.0
    # Warm-up begins at its first positive rate, and the decay's last rate is not 0.
    expected = [0.5, 1.0, *(k / 10 for k in range(9, 0, -1)), 0.1]
    assert plan.stepsizes.tolist() == pytest.approx(expected)
    assert plan.noise_multipliers[-1] > plan.noise_multipliers[1]  # shaped to the schedule of SGD
    assert args.gradient_accumulation_steps == 2  # as the caller made it
    adam = PrivateTrainer(bert(), settings(tmp_path), train_dataset=records(), epsilon=2.0).plan
    assert isinstance(adam, dither.Plan)
    assert len({*adam.noise_multipliers.tolist()}) == 1


class Recorder(TrainerCallback):
    """Keeps what a callback sees."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []
        self.steps = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1


def test_the_training_loss_is_nowhere_unless_it_is_asked_for(tmp_path: Path) -> None:
    seen: dict[bool, list[dict[str, float]]] = {}
    for shown in (False, True):
        recorder = Recorder()
        path = tmp_path / str(shown)
        trainer = PrivateTrainer(
            bert(), settings(path, save_strategy="steps", save_steps=2), train_dataset=records(),
            plan=with_noise(), callbacks=[recorder], log_sensitive_training_loss=shown,
        )  # fmt: skip
        output = trainer.train()
        state = json.loads((path / "checkpoint-4/trainer_state.json").read_text())
        logged = [*recorder.logs, *state["log_history"], output.metrics]
        has_loss = [any(name in each for name in ("loss", "train_loss")) for each in logged]
        assert all(has_loss) if shown else not any(has_loss)
        assert math.isfinite(output.training_loss) == shown
        assert not any("grad_norm" in each for each in logged)
        assert state["total_flos"] == 0
        seen[shown] = recorder.logs
    steps, last = seen[False][:-1], seen[False][-1]
    assert [each["learning_rate"] for each in steps] == [0.01] * 4
    assert {each["noise_multiplier"] for each in steps} == {with_noise().noise_multipliers[0]}
    spent = [each["epsilon"] for each in steps]
    assert spent == sorted(spent)
    assert last["epsilon"] == with_noise().bound.epsilon


class Stop(TrainerCallback):
    """Stops early after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 2


def test_a_run_that_stops_early_tells_what_is_spent_and_what_was_planned(tmp_path: Path) -> None:
    trainer = PrivateTrainer(
        bert(), settings(tmp_path), train_dataset=records(), plan=with_noise(), callbacks=[Stop()]
    )
    metrics = trainer.train().metrics
    assert metrics["epsilon"] == pytest.approx(epsilon_of(2, 4), rel=0.02)
    assert metrics["epsilon_planned"] == with_noise().bound.epsilon > metrics["epsilon"]
    assert trainer.state.log_history[-1]["epsilon_planned"] == metrics["epsilon_planned"]
    assert Ledger(tmp_path).total(1e-3).epsilon >= 0.98 * metrics["epsilon_planned"]
    assert "train_samples_per_second" not in metrics  # batches are not those of the arguments


class Killed(Exception):  # noqa: N818 (a death, and no error)
    """The process dies."""


class Kill(TrainerCallback):
    """Dies after a step, or after a step was saved."""

    def __init__(self, step: int | None = None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Killed

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.step is None:
            raise Killed


def epsilon_of(steps: int, planned: int) -> float:
    """Return what the first steps of a plan cost, by the accountant alone."""
    z = with_noise(planned).noise_multipliers[:steps]
    made = dither.Plan.from_noise_multipliers(z, delta=1e-3, dataset_size=N, batch_size=8)
    return made.bound.epsilon


def test_a_killed_run_resumes_and_pays_for_the_steps_that_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = settings(tmp_path, max_steps=8, save_strategy="steps", save_steps=3)
    plan, data = with_noise(8), records()

    def trainer(*callbacks: Any) -> Any:
        return PrivateTrainer(
            bert(), args, train_dataset=data, plan=plan, callbacks=[*callbacks], run_name="one"
        )

    with monkeypatch.context() as dying:
        dying.setattr(Private, "close", lambda _: None)  # who dies does not end the run
        with pytest.raises(Killed):
            trainer(Kill(5)).train()
    released = Ledger(tmp_path).runs["one"].spent
    assert len(released) >= 5
    recorder = Recorder()
    resumed = trainer(recorder)
    with pytest.warns(UserWarning, match="were spent and lost"):
        resumed.train(resume_from_checkpoint=True)
    assert recorder.steps == 5  # 3 of 8 were in the checkpoint
    assert resumed.state.global_step == 8
    spent = Ledger(tmp_path).runs["one"].spent
    assert len(spent) == len(released) + 5
    assert spent[5] > plan.noise_multipliers[5]  # more noise: the total stays the planned one
    made = dither.Plan.from_noise_multipliers(spent, delta=1e-3, dataset_size=N, batch_size=8)
    assert epsilon_of(5, 8) < made.bound.epsilon <= plan.bound.epsilon
    assert resumed.private.spent().epsilon == pytest.approx(made.bound.epsilon, rel=1e-3)


def test_a_run_that_was_killed_before_a_checkpoint_stays_paid(tmp_path: Path) -> None:
    data, plan = records(), with_noise(4)
    with pytest.raises(Killed):
        PrivateTrainer(
            bert(), settings(tmp_path), train_dataset=data, plan=plan, callbacks=[Kill(2)]
        ).train()
    assert Ledger(tmp_path).total(1e-3).epsilon >= 0.99 * epsilon_of(2, 4)
    PrivateTrainer(bert(), settings(tmp_path), train_dataset=data, plan=plan).train()
    ledger = Ledger(tmp_path)
    both = [z for run in ledger.runs.values() for z in run.spent]
    assert len(both) == 6
    made = dither.Plan.from_noise_multipliers(both, delta=1e-3, dataset_size=N, batch_size=8)
    assert ledger.total(1e-3).epsilon >= 0.99 * made.bound.epsilon


def test_a_resumed_run_goes_on_where_it_was(usual: list[Tensor], tmp_path: Path) -> None:
    given: Any = {"train_dataset": records(), "plan": without_noise(), "seed": 3}
    args = settings(tmp_path, save_strategy="steps", save_steps=2)
    with pytest.raises(Killed):
        PrivateTrainer(bert(), args, callbacks=[Kill()], **given).train()
    resumed = PrivateTrainer(bert(), args, **given)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.private.step == resumed.state.global_step == 4
    assert distance(usual, parameters(resumed.model)) <= 1e-6
    assert not [*tmp_path.glob("checkpoint-2/rng_state*")]


def test_a_checkpoint_without_its_state_is_refused(tmp_path: Path) -> None:
    args = settings(
        tmp_path, max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True
    )
    data, plan = records(), with_noise(2)
    with pytest.warns(UserWarning, match="save_only_model=True leaves out"):
        PrivateTrainer(bert(), args, train_dataset=data, plan=plan).train()
    args.save_only_model = False
    again = PrivateTrainer(bert(), args, train_dataset=data, plan=plan)
    with pytest.raises(InvalidValueError, match="complete checkpoint of a PrivateTrainer"):
        again.train(resume_from_checkpoint=True)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_evaluation_callbacks_and_the_best_model_work_as_usual(tmp_path: Path) -> None:
    args = settings(
        tmp_path, max_steps=-1, num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch",
        load_best_model_at_end=True, metric_for_best_model="accuracy", logging_strategy="epoch",
    )  # fmt: skip
    recorder = Recorder()
    trainer = PrivateTrainer(
        bert(), args, train_dataset=records(), eval_dataset=records(count=9), epsilon=4.0,
        compute_metrics=accuracy, callbacks=[recorder],
    )  # fmt: skip
    trainer.train()
    assert recorder.steps == trainer.private.step == 12
    assert [each["epoch"] for each in recorder.logs if "eval_accuracy" in each] == [1.0, 2.0]
    assert trainer.state.best_model_checkpoint is not None
    assert {"eval_loss", "eval_accuracy"} <= {*trainer.evaluate()}
    with pytest.warns(UserWarning, match="train was called before.*total of the ledger"):
        trainer.train()  # another run, which pays again
    assert len(Ledger(tmp_path).runs) == 2


def test_lora_trains_its_adapters_and_nothing_else(tmp_path: Path) -> None:
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = get_peft_model(bert(), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    args = settings(tmp_path, save_strategy="steps", save_steps=2)
    given: Any = {"train_dataset": records(), "plan": with_noise()}
    with pytest.raises(Killed):
        PrivateTrainer(model, args, callbacks=[Kill()], **given).train()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
    again = PrivateTrainer(get_peft_model(bert(), config), args, **given)
    again.train(resume_from_checkpoint=True)
    assert again.private.step == 4
    assert again.private.spent() == with_noise().bound


def test_weights_that_do_not_change_are_an_error_that_names_them(tmp_path: Path) -> None:
    model = bert()
    held = torch.optim.SGD([{"params": [p], "lr": 0.0} for p in model.parameters()], lr=0.1)
    held.param_groups[-1]["lr"] = 0.1
    trainer = PrivateTrainer(
        model,
        settings(tmp_path),
        train_dataset=records(),
        plan=with_noise(),
        optimizers=(held, None),
    )
    with pytest.raises(StepError, match="has not changed .*, which have a gradient"):
        trainer.train()


def test_frozen_weights_that_change_are_an_error_that_names_them(tmp_path: Path) -> None:
    model = bert()
    model.classifier.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    class Writes(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            model.classifier.bias.data.add_(1.0)
            with torch.no_grad():
                model.classifier.bias.add_(1.0)
            return super().step(closure)

    optimizer = Writes([p for p in model.parameters() if p.requires_grad], lr=0.1)
    trainer = PrivateTrainer(
        model, settings(tmp_path), train_dataset=records(), plan=with_noise(),
        optimizers=(optimizer, None),
    )  # fmt: skip
    with pytest.raises(StepError, match=r"frozen, classifier\.bias"):
        trainer.train()


MODES: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
    "auto": {},
}


@pytest.mark.parametrize("mode", MODES)
def test_ways_to_compute_train_the_same_model(
    mode: str, usual: list[Tensor], tmp_path: Path
) -> None:
    model, args = bert(), settings(tmp_path, **MODES[mode])
    more: Any = {"microbatch_size": "auto"} if mode == "auto" else {}
    PrivateTrainer(
        model, args, train_dataset=records(), plan=without_noise(), seed=3, **more
    ).train()
    # Adam takes steps of 0.01, in which bfloat16 may turn a few signs.
    close = 0.05 if mode == "bf16" else 1e-6
    assert distance(usual, parameters(model)) <= close
    assert distance(usual, parameters(bert())) > 0.01


LOSSES: dict[str, tuple[Any, str]] = {
    "regression": (lambda: bert(num_labels=1), "number"),
    "several labels": (bert, "several"),
    "tags": (lambda: bert(BertForTokenClassification), "tags"),
    "answer": (lambda: bert(BertForQuestionAnswering, num_labels=2), "answer"),
    "text to text": (t5, "tokens"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_of_single_records_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    make, labels = LOSSES[case]
    model, data = make(), records(labels)
    args = settings(tmp_path, max_steps=1)
    trainer = PrivateTrainer(model, args, train_dataset=data, epsilon=4.0)
    for record in data[:3]:
        size = int(record["attention_mask"].sum())
        own = {k: v[:size] if isinstance(v, Tensor) else v for k, v in record.items()}
        padded = trainer.record_losses(stacked([record] * 2))
        with torch.no_grad():
            expected = model(**stacked([own])).loss  # a batch of one record, not padded
        assert padded[0].item() == pytest.approx(expected.item(), rel=1e-4)
        assert padded.shape == (2,)
    trainer.train()
    assert trainer.private.step == 1


def test_an_answer_behind_a_document_has_no_loss_however_far_others_pad(tmp_path: Path) -> None:
    size, data = 4, records("answer")
    ids = torch.arange(1, size + 1)
    place = {"start_positions": torch.tensor([1, 1]), "end_positions": torch.tensor([2, size])}
    trainer = PrivateTrainer(
        bert(BertForQuestionAnswering, num_labels=2), settings(tmp_path), train_dataset=data,
        epsilon=4.0,
    )  # fmt: skip
    found = []
    for length in (size, LENGTH):
        padded = functional.pad(ids, (0, length - size)).expand(2, -1)
        mask = (torch.arange(length) < size).long().expand(2, -1)
        found.append(trainer.record_losses({"input_ids": padded, "attention_mask": mask, **place}))
    short, long = found
    assert long.tolist() == pytest.approx(short.tolist(), rel=1e-5)
    assert 0 < short[1] < short[0]  # the end of the second is cut off: only its start counts


def test_multiple_choice_trains(tmp_path: Path) -> None:
    data = [
        {k: torch.stack([v, v.flip(0)]) if isinstance(v, Tensor) else v % 2 for k, v in r.items()}
        for r in records()
    ]
    trainer = PrivateTrainer(
        bert(BertForMultipleChoice, initializer_range=0.5),  # else choices are all alike
        settings(tmp_path, max_steps=2),
        train_dataset=data,
        epsilon=4.0,
    )
    trainer.train()
    assert trainer.private.step == 2


def test_smoothed_labels_are_those_of_torch() -> None:
    logits, labels = torch.randn(3, 4, 5), torch.tensor([[1, 2, 3, -100], [0, -100, 4, 4], [2] * 4])
    outputs = type("Outputs", (), {"logits": logits})
    found = token_losses(outputs, labels, label_smoothing=0.2)
    by_hand = [
        functional.cross_entropy(a, b, label_smoothing=0.2)
        for a, b in zip(logits, labels, strict=True)
    ]
    assert by_hand[2].item() == pytest.approx(found[2].item())
    only = functional.cross_entropy(logits[0, :3], labels[0, :3], label_smoothing=0.2)
    assert found[0].item() == pytest.approx(only.item())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "auto_find_batch_size": ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    "neftune": ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
    "liger": ({"use_liger_kernel": True}, "use_liger_kernel"),
    "group by length": ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
    "tokens seen": ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
    "reentrant": (
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        "gradient_checkpointing_kwargs",
    ),
    "clip norm": ({"max_grad_norm": 0.0}, "max_grad_norm"),
    "plateau": ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "lr_scheduler_type"),
    "optimizer": ({"optim": "lomo"}, "optim must"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_cannot_be_followed_are_refused_by_name(case: str, tmp_path: Path) -> None:
    more, name = REFUSED[case]
    if case == "plateau":
        more = {**more, "eval_strategy": "steps"}
    with pytest.raises(InvalidValueError, match=name):
        PrivateTrainer(
            bert(), settings(tmp_path, **more), train_dataset=records(), eval_dataset=records(),
            epsilon=4.0,
        )  # fmt: skip


def test_fp16_is_refused_by_name(tmp_path: Path) -> None:
    args = settings(tmp_path)
    args.fp16 = True  # a GPU would be needed to ask for it
    with pytest.raises(InvalidValueError, match="fp16 must be left out.*bf16=True works"):
        PrivateTrainer(bert(), args, train_dataset=records(), epsilon=4.0)


@pytest.mark.parametrize("watched", ["gradients", "all"])
def test_gradients_are_not_watched(
    watched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_WATCH", watched)
    args = settings(tmp_path)
    given: Any = {"train_dataset": records(), "epsilon": 4.0}
    PrivateTrainer(bert(), args, **given)  # nothing is reported
    args.report_to = ["wandb"]
    with pytest.raises(InvalidValueError, match=f'WANDB_WATCH must be "false".*{watched}'):
        PrivateTrainer(bert(), args, **given)


class WithOwnLoss(PrivateTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class WithOwnLoader(PrivateTrainer):
    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader()


def masking(**more: Any) -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(WORDS - 5))]
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    return DataCollatorForLanguageModeling(tokenizer, **more)


def test_parts_that_cannot_be_private_are_refused_by_name(tmp_path: Path) -> None:
    args, data = settings(tmp_path), records()

    def refused(match: str, model: Any = None, kind: type = PrivateTrainer, **more: Any) -> None:
        given = {"train_dataset": data, "epsilon": 4.0, **more}
        with pytest.raises((InvalidTypeError, InvalidValueError), match=match):
            kind(model or bert(), args, **given)

    refused("exactly one of plan and epsilon", plan=with_noise())
    refused("exactly one of plan and epsilon", epsilon=None)
    refused("plan must be what dither.plan returns", epsilon=None, plan=3)
    refused("delta must be left out", epsilon=None, plan=with_noise(), delta=1e-5)
    refused("max_steps must be left out", epsilon=None, plan=with_noise(5))
    refused("compute_loss_func must be left out", compute_loss_func=len)
    refused("compute_loss of WithOwnLoss", kind=WithOwnLoss)
    refused("get_train_dataloader of WithOwnLoader.*pass train_dataset", kind=WithOwnLoader)
    refused("made without seed=, got DataCollatorForLanguageModeling.seed=42",
            data_collator=masking(seed=42))  # fmt: skip
    refused("DataCollatorWithFlattening", data_collator=DataCollatorWithFlattening())
    refused("train_dataset must give any record", train_dataset=iter(data))
    refused("train_dataset must give any record", train_dataset=iter(data), epsilon=None,
            plan=with_noise())  # fmt: skip
    refused("users must be one id per record", users=len)
    refused("eval_dataset must be public", eval_dataset={"same": data})
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    refused("have no scheduler, got ConstantLR", model, optimizers=(optimizer, scheduler))
    refused("have no scheduler, got one attached", model, optimizers=(optimizer, None))

    class Unknown(BertModel):
        pass

    refused("loss must be given for Unknown", bert(Unknown))
    routed = gpt2()
    routed.config.output_router_logits = True
    refused("output_router_logits must be False", routed)
    trainer = PrivateTrainer(bert(), args, train_dataset=data, epsilon=4.0)
    with pytest.raises(InvalidTypeError, match="hyperparameter_search"):
        trainer.hyperparameter_search()
    with pytest.raises(InvalidValueError, match="eval_dataset must be public"):
        trainer.predict(data)


def packed(**more: Any) -> list[Record]:
    return [{**record, **more} for record in records("tokens")]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (packed(position_ids=torch.arange(LENGTH) % 4), "position_ids that begin again"),
        (packed(seq_lengths=torch.tensor([4, 4])), "packed ones .seq_lengths"),
        (records("none"), "must have labels"),
    ],
)
def test_batches_that_mix_documents_are_refused(data: Any, match: str, tmp_path: Path) -> None:
    args = settings(tmp_path)
    trainer = PrivateTrainer(gpt2(), args, train_dataset=data, epsilon=4.0)
    with pytest.raises(InvalidValueError, match=match):
        trainer.train()


class Padded:
    """A collator that pads to the longest document, as those of transformers do, or to a length."""

    def __init__(self, side: str = "right", masks: bool = True, longest: int = 0) -> None:
        self.longest = longest
        self.tokenizer = type("Tokenizer", (), {"padding_side": side})
        self._masks = masks

    def __call__(self, given: list[Record]) -> dict[str, Tensor]:
        longest = self.longest or max(int(each["attention_mask"].sum()) for each in given)
        cut = [
            {k: v[:longest] if isinstance(v, Tensor) else v for k, v in r.items()} for r in given
        ]
        batch = stacked(cut)
        return batch if self._masks else {k: v for k, v in batch.items() if k != "attention_mask"}


def test_padding_to_the_longest_changes_nothing_where_a_mask_hides_it(
    usual: list[Tensor], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    plan, data, model = without_noise(), records(), bert()
    PrivateTrainer(model, settings(tmp_path), Padded(), data, plan=plan, seed=3).train()
    assert distance(usual, parameters(model)) <= 1e-6
    assert not [each for each in recwarn if "pads to the longest" in str(each.message)]
    with pytest.raises(InvalidValueError, match='padding_side of the tokenizer must be "right"'):
        PrivateTrainer(bert(), settings(tmp_path), Padded("left"), data, plan=plan)
    unmasked = PrivateTrainer(bert(), settings(tmp_path), Padded(masks=False), data, plan=plan)
    with pytest.raises(InvalidValueError, match="must have an attention_mask"):
        unmasked.train()


def convbert() -> Any:
    torch.manual_seed(1)
    return ConvBertForSequenceClassification(
        ConvBertConfig(
            vocab_size=WORDS, hidden_size=8, embedding_size=8, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=8, max_position_embeddings=LENGTH,
            num_labels=3, initializer_range=0.4,
        )
    )  # fmt: skip


def test_a_model_that_sees_padding_needs_a_public_length(tmp_path: Path) -> None:
    args, given = settings(tmp_path), records()
    trainer = PrivateTrainer(convbert(), args, Padded(), given, epsilon=4.0, seed=3)
    with pytest.raises(InvalidValueError, match="padded to a public length for ConvBert"):
        trainer.train()
    assert trainer.private.step == 0
    PrivateTrainer(convbert(), args, Padded(longest=LENGTH), given, epsilon=4.0).train()


class Talking(Padded):
    """Pads, and has something to say."""

    def __call__(self, given: list[Record]) -> dict[str, Tensor]:
        warnings.warn("documents are short", stacklevel=1)
        return super().__call__(given)


def test_warnings_of_a_collator_are_shown(tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=1)
    trainer = PrivateTrainer(bert(), args, Talking(), records(), epsilon=4.0)
    with pytest.warns(UserWarning, match="documents are short") as seen:
        trainer.train()
    assert not [each for each in seen if "pads to the longest" in str(each.message)]


@pytest.mark.parametrize("case", ["bf16", "text to text", "causal", "adapters"])
def test_models_that_do_not_see_padding_are_not_refused(case: str, tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=1, bf16=case == "bf16")
    adapters = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    makers: dict[str, Any] = {"text to text": t5, "causal": gpt2, "bf16": bert,
                              "adapters": lambda: get_peft_model(bert(), adapters)}  # fmt: skip
    data = records("class" if case in ("bf16", "adapters") else "tokens")
    trainer = PrivateTrainer(makers[case](), args, Padded(), data, epsilon=4.0)
    trainer.train()
    assert trainer.private.step == 1


def test_users_are_drawn_where_records_have_them(tmp_path: Path) -> None:
    trainer = PrivateTrainer(
        bert(), settings(tmp_path, max_steps=-1, num_train_epochs=1), train_dataset=records(),
        epsilon=4.0, users=[i // 3 for i in range(N)],
    )  # fmt: skip
    trainer.train()
    assert trainer.plan is not None
    assert (trainer.plan.dataset_size, trainer.private.step) == (N // 3, 2)
    assert "one user" in str(trainer.private.spent())


def test_a_trainer_without_training_data_evaluates(tmp_path: Path) -> None:
    trainer = PrivateTrainer(bert(), settings(tmp_path), eval_dataset=records(count=9), epsilon=4.0)
    assert "eval_loss" in trainer.evaluate()
    with pytest.raises(InvalidTypeError, match="train_dataset must be given"):
        trainer.train()


def _train_on_ranks(folder: str) -> None:
    args = settings(
        Path(folder), max_steps=3, per_device_train_batch_size=5, ddp_backend="gloo",
        save_strategy="steps", save_steps=2,
    )  # fmt: skip
    plan, model = without_noise(steps=3, batch_size=N), bert().double()
    trainer = PrivateTrainer(model, args, train_dataset=records(), plan=plan, seed=3)
    trainer.train()
    torch.save(parameters(model), f"{folder}/{args.process_index}.pt")


@pytest.mark.evidence
def test_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    launching.run(2, _train_on_ranks, str(tmp_path))
    plan, model = without_noise(steps=3, batch_size=N), bert().double()
    args = settings(tmp_path / "one", max_steps=3)
    PrivateTrainer(model, args, train_dataset=records(), plan=plan, seed=3).train()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert distance(found, parameters(model)) <= 1e-6
    assert (tmp_path / "checkpoint-2/private_state.json").exists()


def test_a_loss_of_one_s_own_gets_outputs_and_labels(tmp_path: Path) -> None:
    def hinge(outputs: Any, labels: Tensor) -> Tensor:
        return functional.multi_margin_loss(outputs.logits, labels, reduction="none")

    given: Any = {"train_dataset": records(), "epsilon": 4.0}
    args = settings(tmp_path, max_steps=1)
    trainer = PrivateTrainer(bert(), args, loss=hinge, **given)
    trainer.train()
    assert trainer.private.step == 1
    scalar = PrivateTrainer(bert(), args, loss=lambda a, b: hinge(a, b).mean(), **given)
    with pytest.raises(ValueError, match="reduction"):
        scalar.train()
