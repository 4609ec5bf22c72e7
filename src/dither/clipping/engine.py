"""The sum of clipped per-record gradients at almost the price of a plain step."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dither.clipping import rules
from dither.clipping.batch import (
    Loss,
    LossOf,
    Objective,
    count,
    mapped,
    take,
    tensors,
    trainable,
    unchanged,
    wide,
)
from dither.clipping.clip import clip
from dither.clipping.oracle import oracle
from dither.clipping.precision import full_precision
from dither.clipping.proof import (
    BadRecordsError,
    Pattern,
    is_proven,
    pattern_of,
    prove,
    refuse_hidden_uses,
    refuse_kept_records,
    refuse_mixed_records,
    refuse_other_numbers,
    remember,
)
from dither.clipping.recorder import Recorder, watching
from dither.clipping.refusals import refuse_unsound_layers
from dither.clipping.registry import UnseenUseError
from dither.clipping.result import ClippedSum
from dither.clipping.uses import Gradients, contributions
from dither.validate import InvalidValueError, choice, instance, positive
from dither.validate import count as whole_number

__all__ = ["FallbackWarning", "clipped_sum", "rules"]

Tell = Callable[[str], object]
_told: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


class FallbackWarning(UserWarning):
    """Something is computed record by record, which is right but slow."""


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    *,
    clip_norm: float,
    engine: str = "fast",
    microbatch: int | None = None,
) -> ClippedSum:
    """Return Σ_i g_i·min(1, clip_norm/‖g_i‖) over the records of a batch, and the norms ‖g_i‖.

    The fast engine makes one forward pass and one backward pass to the outputs of the layers. The
    norms and the weighted sum come from inputs and output gradients, so that one gradient a record
    is formed only where that is cheaper, a few records at a time.

    Guarantees:
        - No record contributes more than ``clip_norm``·(1 + 1e-5), rounding included.
        - A record whose gradient is NaN or infinite counts as zero and leaves the others alone.
        - Every path from the loss to a parameter is accounted for on every batch; what no rule
          covers goes to the oracle, with a :class:`FallbackWarning` once. What a model does for
          the first time is compared with plain autograd, and records are exchanged to see that
          none depends on another; models and losses of which one does are refused.
        - The model carries no hooks or wrappers afterwards, and what its forward pass changes, it
          changes once; what it would keep of the records is refused.

    Args:
        model: any module; called as ``model(inputs)``, ``model(*inputs)`` or ``model(**inputs)``
            for a tensor, a tuple or a dict.
        loss: ``loss(outputs, targets)`` with one value a record.
        inputs: a batch, with the records along the first dimension of every tensor.
        targets: what the loss compares with, or None.
        clip_norm: l2 bound on one record's gradient over all trainable parameters; ``math.inf``
            for the plain sum.
        engine: ``"fast"``, or ``"oracle"`` for explicit gradients of single records.
        microbatch: compute the batch in pieces of this many records, with the same result in
            less memory.

    Returns:
        A :class:`ClippedSum`. It is sensitive: noise has to be added before anyone sees it.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
        >>> total = clipped_sum(model, lambda out, y: out[:, 0], x, None, clip_norm=1.0)
        >>> total.gradients["weight"], total.norms
        (tensor([[0.6000, 1.3000]]), tensor([5.0000, 0.5000]))
    """
    instance(nn.Module, model=model)
    clip_norm = clip_norm if clip_norm == math.inf else positive(clip_norm=clip_norm)
    choice(("fast", "oracle"), engine=engine)
    records = count(inputs=inputs)
    if targets is not None and count(targets=targets) != records:
        given = count(targets=targets)
        raise InvalidValueError(
            f"targets must be of as many records as inputs, {records}, got {given}"
        )
    if torch.is_inference_mode_enabled():
        raise InvalidValueError("clipped_sum must be called outside torch.inference_mode()")
    refuse_unsound_layers(model)
    if records == 0:
        empty = {n: torch.zeros_like(p, dtype=wide(p.dtype)) for n, p in trainable(model).items()}
        return ClippedSum(empty, torch.zeros(0))
    step = records if microbatch is None else min(records, whole_number(microbatch=microbatch))
    sums: dict[str, Tensor] = {}
    norms: list[Tensor] = []
    with telling_once(model) as tell:
        for start in range(0, records, step):
            part = slice(start, min(records, start + step))
            batch = (inputs, targets) if step == records else take((inputs, targets), part)
            piece = (model, LossOf(loss), batch, part.stop - part.start, clip_norm)
            found, own = oracle(*piece) if engine == "oracle" else fast_piece(*piece, tell)
            sums = {n: sums[n].add_(each) for n, each in found.items()} if sums else found
            norms.append(own)
    return ClippedSum(sums, norms[0] if len(norms) == 1 else torch.cat(norms))


@contextmanager
def telling_once(model: nn.Module) -> Iterator[Tell]:
    """Collect notes, and warn in the end of those that this model has not given yet."""
    notes: dict[str, None] = {}
    yield notes.setdefault
    told = _told.setdefault(model, set())
    for note in [note for note in notes if note not in told]:
        told.add(note)
        warnings.warn(note, FallbackWarning, stacklevel=4)


def fast_piece(
    model: nn.Module, objective: Objective, batch: Any, records: int, clip_norm: float, tell: Tell
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the clipped sum and the norms by the fast engine, or by the oracle if need be."""
    refuse_kept_records(model, objective, batch, records)
    recording = Recording(model, batch, records)
    with torch.enable_grad(), watching(model, recording.recorder):
        losses = objective.values(recording.recorder.following(model), batch, records)
    return recording.clipped(objective, losses, clip_norm, tell)


class Recording:
    """A batch on its way through a model, from before its forward pass to its clipped sum.

    Args:
        model: the model.
        batch: all tensors of the batch.
        records: how many records it has.
    """

    def __init__(self, model: nn.Module, batch: Any, records: int) -> None:
        self.recorder = Recorder(trainable(model), batch, records)
        self._model, self._batch = model, batch
        self._state = torch.get_rng_state()
        self._versions = self._versions_now()

    def clipped(
        self, objective: Objective, losses: Tensor, clip_norm: float, tell: Tell, views: int = 1
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the clipped sum and the norms; ``losses`` are one a record, or their sum.

        With several views, every so many neighbours are of one record, which is clipped as a whole.
        """
        model, batch, recorder = self._model, self._batch, self.recorder
        given = model, objective, batch, recorder, self._state
        try:
            refuse_hidden_uses(recorder, losses)
            pattern = pattern_of(model, objective, recorder)
            proven = is_proven(model, pattern, recorder)
            prove_rest = partial(self._prove_rest, objective, pattern)
            given_losses = losses, proven, prove_rest
            result, gradients = _finish(recorder, *given_losses, clip_norm, tell, views)
            if proven:
                refuse_other_numbers(model, pattern, *given[1:])
            elif refuse_mixed_records(*given):
                remember(model, pattern, recorder, gradients)
        except UnseenUseError as reason:
            if self._versions_now() != self._versions:
                raise InvalidValueError(
                    "model must not change its inputs in place, got one that does and has no rule"
                ) from None
            tell(f"{reason}: the whole model is computed record by record, which is slow")
            return self.by_oracle(objective, clip_norm, views)
        return result

    def by_oracle(
        self, objective: Objective, clip_norm: float, views: int = 1
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the same from explicit gradients of single records."""
        model, batch, recorder = self._model, self._batch, self.recorder
        refuse_mixed_records(model, objective, batch, recorder, self._state, by_losses_alone=True)
        return oracle(model, objective, batch, recorder.records, clip_norm, views)

    def _prove_rest(self, objective: Objective, pattern: Pattern, good: Tensor) -> None:
        """Prove what the model does on some records alone: those whose gradients are finite."""
        if not len(good):
            return
        batch, records = mapped(self._batch, lambda tensor: tensor[good]), len(good)
        with unchanged(self._model, batch) as same:
            recording = Recording(self._model, batch, records)
            with torch.enable_grad(), watching(self._model, recording.recorder):
                called = recording.recorder.following(same)
                losses = objective.values(called, batch, records)
            recording.clipped(objective, losses, math.inf, str)
        if not is_proven(self._model, pattern, self.recorder):
            raise UnseenUseError("the batch cannot be compared with plain autograd")

    def _versions_now(self) -> list[int]:
        return [tensor._version for tensor in tensors(self._batch)]


@torch.no_grad()
def _finish(
    recorder: Recorder,
    losses: Tensor,
    proven: bool,
    prove_rest: Callable[[Tensor], None],
    clip_norm: float,
    tell: Tell,
    views: int,
) -> tuple[tuple[dict[str, Tensor], Tensor], Mapping[int, Gradients]]:
    """Return the clipped sum and the norms of a recorded batch, and the outputs' gradients."""
    sums: dict[str, Tensor] = {}
    norms = losses.new_zeros(recorder.records // views)
    gradients: Mapping[int, Gradients] = {}
    if recorder.parameters and losses.grad_fn is None:
        raise InvalidValueError(
            "loss must depend on the trainable parameters, got losses without a graph"
        )
    with full_precision(losses.device.type):
        if losses.requires_grad:
            gradients = _output_gradients(recorder, losses, keep=not proven)
            parts, slow = contributions(recorder, gradients)
            for call in slow:
                tell(f"{call}: no rule, so this call alone is repeated for every record")
            for name in sorted(recorder.data_dependent):
                tell(f"{name} may move records: every batch is compared with autograd")
            if not proven:
                try:
                    prove(recorder, losses, gradients, parts)
                except BadRecordsError as found:
                    prove_rest(found.good)
            if views > 1:
                parts = {name: part.merged(views) for name, part in parts.items()}
            if parts:
                sums, norms = clip(parts, clip_norm)
    return (_complete(sums, recorder), norms.to(wide(losses.dtype))), gradients


def _output_gradients(recorder: Recorder, losses: Tensor, keep: bool) -> dict[int, Gradients]:
    edges = [edge for use in recorder.uses for edge in use.edges if edge is not None]
    with torch.enable_grad():  # the gradient of a scalar: anything else makes torch import sympy
        total = losses.sum()
    found = iter(
        torch.autograd.grad(total, edges, allow_unused=True, retain_graph=keep) if edges else ()
    )
    return {
        position: [None if edge is None else next(found) for edge in use.edges]
        for position, use in enumerate(recorder.uses)
    }


def _complete(sums: dict[str, Tensor], recorder: Recorder) -> dict[str, Tensor]:
    return {
        name: sums[name].to(wide(p.dtype)).contiguous()
        if name in sums
        else torch.zeros_like(p, dtype=wide(p.dtype))
        for name, p in recorder.parameters.items()
    }
