"""Canaries for real training: artificial records, each included with probability 1/2."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from dither import validate
from dither.audit.attacks import Included, draw_included
from dither.clipping.batch import forward
from dither.randomness import Source
from dither.training.evaluation import eval_mode
from dither.types import FloatArray

_BATCH = 1000


@final
@dataclass(frozen=True, eq=False)
class Canaries:
    """Records for classifiers that a model can learn only by memorising them.

    Attributes:
        inputs: one per canary.
        targets: their labels.
        included: whether each is in the data.

    Example:
        >>> canaries = out_of_distribution(100, (4,), classes=2, seed=1)
        >>> inputs, targets = canaries.mixed_into(torch.zeros(10, 4), torch.zeros(10).long())
        >>> len(inputs) == len(targets) == 10 + int(canaries.included.sum())
        True
    """

    inputs: Tensor
    targets: Tensor
    included: Included

    def mixed_into(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the data with the included canaries."""
        for name, given in (("inputs", inputs), ("targets", targets)):
            validate.instance(Tensor, **{name: given})
        if targets.shape != inputs.shape[:1] or targets.is_floating_point():
            raise validate.InvalidValueError(
                f"targets must have one label per record, got {targets.dtype} of shape "
                f"{tuple(targets.shape)} for {len(inputs)} records"
            )
        if inputs.shape[1:] != self.inputs.shape[1:] or inputs.dtype != self.inputs.dtype:
            raise validate.InvalidValueError(
                f"inputs must be like the canaries, {tuple(self.inputs.shape[1:])} of "
                f"{self.inputs.dtype}, got {tuple(inputs.shape[1:])} of {inputs.dtype}"
            )
        kept = torch.from_numpy(self.included)
        return (
            torch.cat([inputs, self.inputs[kept]]),
            torch.cat([targets, self.targets[kept].to(targets.dtype)]),
        )

    @torch.no_grad()
    def scores(self, model: nn.Module) -> FloatArray:
        """Return each canary's log probability of its label, minus the mean over all canaries.

        A higher score means that the canary was more likely in the data.
        """
        validate.instance(nn.Module, model=model)
        device = next(iter(model.parameters())).device
        with eval_mode(model):
            outputs = [forward(model, (part.to(device),)) for part in self.inputs.split(_BATCH)]
        logits = torch.cat(outputs).double().cpu()
        if logits.dim() != 2 or logits.shape[1] <= int(self.targets.max()):
            raise validate.InvalidValueError(
                "model must give one number per class, got outputs of shape "
                f"{tuple(logits.shape)} for labels up to {int(self.targets.max())}"
            )
        log_probabilities = torch.log_softmax(logits, 1)
        own = log_probabilities.gather(1, self.targets[:, None])[:, 0]
        return (own - log_probabilities.mean(0)[self.targets]).numpy()


def mislabelled(
    inputs: Tensor, targets: Tensor, *, classes: int, seed: int | None = None
) -> Canaries:
    """Return records with wrong labels, each of the others with the same probability.

    The records should be public, or taken out of the training data before: a copy of a record that
    is also trained on would count as two of it.

    Args:
        inputs: the records.
        targets: their labels, 0 … classes − 1.
        classes: how many classes there are, at least two.
        seed: makes labels and inclusion reproducible.

    Example:
        >>> canaries = mislabelled(torch.zeros(4, 2), torch.tensor([0, 1, 2, 2]), classes=3, seed=1)
        >>> bool((canaries.targets == torch.tensor([0, 1, 2, 2])).any())
        False
    """
    count = _check_classes(classes)
    for name, given in (("inputs", inputs), ("targets", targets)):
        validate.instance(Tensor, **{name: given})
    if targets.ndim != 1 or len(inputs) != len(targets) or not len(targets):
        raise validate.InvalidValueError(
            f"targets must have one label per record, got shape {tuple(targets.shape)} for "
            f"{len(inputs)} records"
        )
    if targets.is_floating_point() or not 0 <= int(targets.min()) <= int(targets.max()) < count:
        raise validate.InvalidValueError(
            f"targets must be integers from 0 to {count - 1}, got {targets.dtype} from "
            f"{targets.min().item()} to {targets.max().item()}"
        )
    shift = 1 + Source(seed).stream("labels", 0).below(count - 1, len(targets))
    wrong = (targets + torch.from_numpy(shift)) % count
    return Canaries(inputs, wrong, draw_included(len(targets), seed))


def out_of_distribution(
    count: int, shape: tuple[int, ...], *, classes: int, seed: int | None = None
) -> Canaries:
    """Return records of standard normal noise with uniform labels.

    Args:
        count: how many.
        shape: of a record.
        classes: how many classes there are, at least two.
        seed: makes records, labels and inclusion reproducible.

    Example:
        >>> canaries = out_of_distribution(100, (1, 8, 8), classes=10, seed=1)
        >>> canaries.inputs.shape, 30 < int(canaries.included.sum()) < 70
        (torch.Size([100, 1, 8, 8]), True)
    """
    m, k = validate.count(count=count), _check_classes(classes)
    sizes = [validate.count(shape=size) for size in validate.instance(tuple, shape=shape)]
    source = Source(seed)
    generator = np.random.default_rng(int(source.stream("inputs", 0).words(1)[0]))
    inputs = torch.from_numpy(generator.standard_normal((m, *sizes), dtype=np.float32))
    labels = torch.from_numpy(source.stream("labels", 0).below(k, m))
    return Canaries(inputs, labels, draw_included(m, seed))


def _check_classes(classes: int) -> int:
    if validate.count(classes=classes) < 2:
        raise validate.InvalidValueError(f"classes must be at least 2, got {classes}")
    return int(classes)
