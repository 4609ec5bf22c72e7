"""Private fine-tuning of models of transformers: a classifier and a language model, full and LoRA.

Documents are generated here, so nothing is downloaded: for the classifier, words of two topics;
for the language model, a language in which every word has a few likely followers. A document is a
record: ε and δ protect each complete document. Each model is measured before and after on other
documents, which are public. Each ε is of one model: the full and the LoRA model of a task saw the
same documents, and to publish both costs more (a ledger adds that up). On a CPU, in a minute:

    pip install -c constraints.txt '.[transformers]'
    python examples/transformers_finetuning.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import dither
from dither.integrations.transformers import (
    IGNORE_INDEX,
    causal_losses,
    classification_losses,
    pad_documents,
    prepare,
)

Data = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """The sizes of the example; all of them public."""

    documents: int = 4000
    length: int = 16
    words: int = 32
    width: int = 32
    layers: int = 2
    batch_size: int = 200
    steps: int = 50
    epsilon: float = 8.0
    delta: float = 1e-5


def topics(settings: Settings, documents: int, generator: torch.Generator) -> Data:
    """Return documents of one of two topics: each has words of its own that are more frequent."""
    classes = torch.randint(2, (documents,), generator=generator)
    frequencies = torch.ones(2, settings.words)
    frequencies[:, 0] = 0.0  # index 0 is padding
    frequencies[0, 1:9] = frequencies[1, 9:17] = 6.0
    words = torch.multinomial(
        frequencies[classes], settings.length, replacement=True, generator=generator
    )
    return _pad(words, settings, generator), classes


def language(settings: Settings, documents: int, generator: torch.Generator) -> Data:
    """Return documents in which a word is followed by one of three, most of the time."""
    followers = torch.full((settings.words, settings.words), 0.3 / settings.words)
    likely = torch.randint(
        1, settings.words, (settings.words, 3), generator=torch.Generator().manual_seed(7)
    )
    followers.scatter_add_(1, likely, torch.full(likely.shape, 0.7 / 3))
    followers[:, 0] = 0.0
    word = torch.randint(1, settings.words, (documents,), generator=generator)
    words = [word]
    for _ in range(settings.length - 1):
        word = torch.multinomial(followers[word], 1, generator=generator)[:, 0]
        words.append(word)
    inputs = _pad(torch.stack(words, 1), settings, generator)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE_INDEX)
    return inputs, labels


def _pad(words: Tensor, settings: Settings, generator: torch.Generator) -> dict[str, Tensor]:
    """Cut documents to lengths of their own, and pad them to the public one."""
    half = settings.length // 2
    lengths = torch.randint(half, settings.length + 1, (len(words),), generator=generator)
    documents = [row[:n].tolist() for row, n in zip(words, lengths, strict=True)]
    return pad_documents(documents, length=settings.length)


def classifier(settings: Settings) -> nn.Module:
    """A small BERT with random weights."""
    config = BertConfig(
        vocab_size=settings.words, hidden_size=settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=4,
        intermediate_size=2 * settings.width, max_position_embeddings=settings.length,
        num_labels=2, initializer_range=0.1,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model


def language_model(settings: Settings) -> nn.Module:
    """A small Llama with random weights."""
    config = LlamaConfig(
        vocab_size=settings.words, hidden_size=settings.width,
        num_hidden_layers=settings.layers, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=2 * settings.width, max_position_embeddings=settings.length,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
        initializer_range=0.1,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model


def with_adapters(model: Any, task: TaskType, layers: str | list[str]) -> nn.Module:
    """Freeze a model and put adapters beside some of its layers."""
    config = LoraConfig(task_type=task, r=8, lora_alpha=16, target_modules=layers)
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


@dataclass(frozen=True)
class Task:
    """What is learnt: from which documents, by which model, with adapters beside which layers."""

    documents: Callable[[Settings, int, torch.Generator], Data]
    model: Callable[[Settings], nn.Module]
    losses: Callable[[Any, Tensor], Tensor]
    kind: TaskType
    layers: str | list[str]


TASKS = {
    "classifier": Task(
        topics, classifier, classification_losses, TaskType.SEQ_CLS, ["query", "value"]
    ),
    "language model": Task(
        language, language_model, causal_losses, TaskType.CAUSAL_LM, "all-linear"
    ),
}


@torch.no_grad()
def public_loss(model: nn.Module, public: Data, task: Task) -> float:
    """Return the mean loss of documents that are public."""
    model.eval()
    inputs, labels = public
    losses = task.losses(model(**inputs), labels)
    model.train()
    return float(losses.mean())


def fine_tune(
    task: Task, how: str, private: Data, public: Data, plan: dither.Plan, settings: Settings
) -> tuple[float, float, dither.training.TrainResult]:
    """Train a model privately; return its loss on public documents before and after, and more."""
    torch.manual_seed(0)
    model = task.model(settings)
    if how == "LoRA":
        model = with_adapters(model, task.kind, task.layers)
    prepare(model)
    before = public_loss(model, public, task)
    result = dither.train(
        model, private, plan, loss=task.losses, progress=False,
        optimizer=partial(torch.optim.Adam, lr=3e-3 if how == "full" else 1e-2),
    )  # fmt: skip
    return before, public_loss(model, public, task), result


def main(settings: Settings | None = None) -> dict[str, tuple[float, float]]:
    """Train four models; return what their loss on public documents was before and after."""
    settings = settings or Settings()
    plan = dither.plan(
        epsilon=settings.epsilon, delta=settings.delta, dataset_size=settings.documents,
        batch_size=settings.batch_size, steps=settings.steps, clip_norm=1.0,
        stepsizes=dither.schedules.Linear(1.0, 0.1),
    )  # fmt: skip
    print(plan, end="\n\n")
    found = {}
    for name, task in TASKS.items():
        generator = torch.Generator().manual_seed(0)
        private = task.documents(settings, settings.documents, generator)
        public = task.documents(settings, 500, generator)
        for how in ("full", "LoRA"):
            start = time.perf_counter()
            before, after, result = fine_tune(task, how, private, public, plan, settings)
            trained = sum(p.numel() for p in result.model.parameters() if p.requires_grad)
            print(
                f"{name}, {how}: {trained:,} parameters, loss on public documents {before:.3f} "
                f"before and {after:.3f} after, {time.perf_counter() - start:.0f} s"
            )
            found[f"{name}, {how}"] = before, after
    print(f"\nThe last of these models, by itself:\n\n{dither.reports.statement(result)}")
    return found


if __name__ == "__main__":
    main()
