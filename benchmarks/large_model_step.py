"""A private fine-tuning step of a GPT-2 of 124 million parameters, against one without privacy.

Twelve layers of width 768, 50,257 words, tied embeddings, random weights; 8 documents of 256
tokens, AdamW, noise included, on two threads. Both steps are timed in one process, alternating;
the peak memory of each is that of a process of its own. Run by ``make bench`` (or
``python -m benchmarks.large_model_step``); writes a record.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

import dither
from benchmarks.clipping_workers import THREADS, kibibytes, seconds
from benchmarks.large_models import gpt2_model
from benchmarks.recording import record
from dither.integrations.transformers import causal_losses, prepare

STEPS, DOCUMENTS, LENGTH, WORDS = 5, 8, 256, 50_257
CHECKED = 4
"""Steps that are checked first, since a batch of so few records alone does not decide."""


def model() -> Any:
    """A GPT-2, the same one every time."""
    torch.manual_seed(0)
    return gpt2_model(words=WORDS, width=768, layers=12, length=LENGTH).train()


def documents() -> Tensor:
    """Random token ids."""
    torch.manual_seed(0)
    return torch.randint(WORDS, (DOCUMENTS, LENGTH))


def plain() -> Callable[[], None]:
    """A step without privacy, with the loss that the model computes."""
    trained, ids = model(), documents()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)

    def step() -> None:
        trained(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private() -> Callable[[], None]:
    """A private step: all documents take part in every step, so that both take as many."""
    trained, ids = prepare(model()), documents()
    plan = dither.Plan.from_noise_multipliers(
        [1.0] * (STEPS + CHECKED), delta=1e-5, dataset_size=DOCUMENTS, batch_size=DOCUMENTS
    )
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    run = dither.make_private(trained, optimizer, plan, (ids, ids))
    batches = run.batches()

    def step() -> None:
        inputs, labels = next(batches)
        run.backward(causal_losses(run.model(inputs, use_cache=False), labels))
        run.optimizer.step()
        run.optimizer.zero_grad()

    return step


METHODS: dict[str, Callable[[], Callable[[], None]]] = {"plain": plain, "private": private}


def speed() -> dict[str, Any]:
    """Time both steps in turn, after those of which dither checks the model."""
    steps = {name: build() for name, build in METHODS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in track(range(CHECKED + STEPS), "steps", transient=True):
        for name, step in steps.items():
            times[name].append(seconds(step))
    medians = {name: median(values[CHECKED:]) for name, values in times.items()}
    return {
        "seconds a step": {name: round(value, 2) for name, value in medians.items()},
        "times plain": round(medians["private"] / medians["plain"], 2),
        "first steps, times plain": [
            round(value / medians["plain"], 2) for value in times["private"][:CHECKED]
        ],
    }


def peak(method: str) -> float:
    """Return the peak memory of a process that takes two steps, in GiB."""
    command = [sys.executable, "-m", "benchmarks.large_model_step", method]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(output.splitlines()[-1])


def print_peak(method: str) -> None:
    """Print the same of this process."""
    step = METHODS[method]()
    for _ in range(2):
        step()
    print(round(kibibytes("VmHWM") / 2**20, 2))


def main() -> None:
    """Measure everything, print it, and write the record."""
    torch.set_num_threads(THREADS)
    results = {
        "setting": f"{THREADS} threads, {DOCUMENTS} documents of {LENGTH} tokens, AdamW, steps "
        f"alternating, median of {STEPS}",
        "parameters": sum(parameter.numel() for parameter in model().parameters()),
        "steps": speed(),
        "GiB of the process": {name: peak(name) for name in METHODS},
    }
    command = "python -m benchmarks.large_model_step"
    record("large_model_step", command, ("torch", "transformers"), results)
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(THREADS)
        print_peak(*sys.argv[1:])
    else:
        main()
