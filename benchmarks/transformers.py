"""A private LoRA step on models of transformers, against the same step without privacy.

A BERT classifier and a GPT-2 language model with random weights, adapters of rank 8 on their
attention, 32 documents of up to 64 tokens per step. Both steps are of as many documents, in one
process on one thread, alternating; the plain one uses the models as they come, with the loss that
they compute, the private one draws its records and noise. Run by
``python -m benchmarks.transformers``; writes a record.
"""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich.progress import track
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import dither
from benchmarks.recording import record
from dither.integrations.transformers import (
    IGNORE_INDEX,
    causal_losses,
    classification_losses,
    prepare,
)

STEPS, WARM, BATCH, LENGTH, WORDS, WIDTH, LAYERS = 15, 2, 32, 64, 1000, 256, 4
RECORDS = 64 * BATCH
Data = tuple[dict[str, Tensor], Tensor]


def bert() -> Any:
    """A classifier of documents."""
    config = BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    return get_peft_model(
        BertForSequenceClassification(config),
        LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"]),
    )


def gpt2() -> Any:
    """A language model."""
    config = GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return get_peft_model(
        GPT2LMHeadModel(config),
        LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["c_attn"], fan_in_fan_out=True),
    )


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor]]] = {
    "BERT classifier": (bert, classification_losses),
    "GPT-2 language model": (gpt2, causal_losses),
}


def documents(of_classes: bool) -> Data:
    """Random documents of half to all of the length, with classes or with their own tokens."""
    ids = torch.randint(2, WORDS, (RECORDS, LENGTH))
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (RECORDS, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    labels = (
        torch.randint(2, (RECORDS,)) if of_classes else ids.masked_fill(mask == 0, IGNORE_INDEX)
    )
    return inputs, labels


def adam(model: Any) -> torch.optim.Optimizer:
    """The optimizer of both steps, on what is not frozen."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def plain(model: Any, data: Data) -> Callable[[int], None]:
    """A step of so many documents without privacy."""
    inputs, labels = data
    optimizer = adam(model.train())

    def step(size: int) -> None:
        index = torch.randperm(RECORDS)[:size]
        batch = {name: tensor[index] for name, tensor in inputs.items()}
        model(**batch, labels=labels[index]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private(model: Any, data: Data, losses: Callable[[Any, Tensor], Tensor]) -> Callable[[], int]:
    """A private step, which returns how many documents it drew."""
    plan = dither.Plan.from_noise_multipliers(
        [1.0] * (STEPS + WARM), delta=1e-5, dataset_size=RECORDS, batch_size=BATCH
    )
    prepare(model.train())
    run = dither.make_private(model, adam(model), plan, data)
    batches = run.batches()

    def step() -> int:
        inputs, labels = next(batches)
        run.backward(losses(run.model(**inputs), labels))
        run.optimizer.step()
        run.optimizer.zero_grad()
        return len(labels)

    return step


def measure(name: str) -> dict[str, Any]:
    """Time both steps in turn."""
    make, losses = CASES[name]
    data = documents(of_classes=losses is classification_losses)
    ours, theirs = private(make(), data, losses), plain(make(), data)
    times: dict[str, list[float]] = {"private": [], "plain": []}
    for _ in track(range(STEPS + WARM), name, transient=True):
        start = time.perf_counter()
        size = ours()
        middle = time.perf_counter()
        theirs(size)
        times["private"].append(middle - start)
        times["plain"].append(time.perf_counter() - middle)
    after = {kind: values[WARM:] for kind, values in times.items()}
    ratios = [a / b for a, b in zip(after["private"], after["plain"], strict=True)]
    return {
        "milliseconds a step": {k: round(1000.0 * median(v), 1) for k, v in after.items()},
        "times plain": round(median(after["private"]) / median(after["plain"]), 2),
        "times plain, median of pairs": round(median(ratios), 2),
    }


def main() -> None:
    """Measure everything, print a summary, and write the record."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {
        "setting": f"1 thread, {LAYERS} layers of width {WIDTH}, LoRA of rank 8 on attention, "
        f"batches of about {BATCH} documents of up to {LENGTH} tokens, AdamW, steps alternating, "
        f"median of {STEPS}",
        "steps": {name: measure(name) for name in CASES},
    }
    command = "python -m benchmarks.transformers"
    record("transformers", command, ("torch", "transformers", "peft"), results)
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
