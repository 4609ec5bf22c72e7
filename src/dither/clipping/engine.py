"""From a recorded batch and its losses to the sum of clipped per-record gradients.

The norms and the weighted sum come from the inputs of layers and the gradients at their outputs, at
almost the cost of a plain step. Parameters that no rule covers are computed record by record.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dither.clipping.apply_rules import (
    Gradients,
    apply_rules,
    gradients_at,
    reason_for_fallback,
    unseen_parameters,
)
from dither.clipping.batch import accumulation_dtype
from dither.clipping.clip import (
    Clip,
    ClippedSum,
    bounded_weights,
    full_precision,
    sum_clipped,
)
from dither.clipping.contributions import MAX_KEPT, Clippable, Contribution, PerRecord
from dither.clipping.gradient_checks import check_own_rows, find_mismatches, gradients_of_half
from dither.clipping.locate import locate_rows
from dither.clipping.recorder import Recorder
from dither.clipping.recording import MAX_ATTEMPTS, CheckCache, RecordedBatch
from dither.clipping.rows import ENOUGH_RECORDS
from dither.validate import InvalidValueError

_MOST_ROWS = 4096
"""More rows than this are added up in float64: in float32 the error would exceed the margin."""


_HOOKED = (
    "it has a hook, which gets the gradient of every record without noise (wandb.watch logs it: "
    'use log="parameters")'
)


class FallbackWarning(UserWarning):
    """Something is computed record by record, which is right but slow.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("ignore", FallbackWarning)
    """


@torch.no_grad()
def clip_recording(
    recording: RecordedBatch,
    losses: Tensor,
    clip: Clip,
    rows: Tensor | None = None,
    record_weights: Tensor | None = None,
) -> ClippedSum:
    """Return the clipped sum of the gradients of losses that a recorded batch has led to.

    Args:
        recording: what the model has done.
        losses: one per row of the batch.
        clip: how the gradient of a record, or of a user, is clipped.
        rows: how many neighbouring rows each of them has, augmented copies or records of one user,
            whose mean gradient is clipped; None is one row each. It is fastest where equal numbers
            are neighbours.
        record_weights: one per row, from 0 to 1, which multiplies the clipped gradient; the mean
            over the rows that are clipped together. None is 1 for all.
    """
    recorder = recording.recorder
    rows = torch.ones(len(losses), dtype=torch.int64) if rows is None else rows
    weights = None
    if record_weights is not None:
        weights = mean_over_rows(bounded_weights(record_weights.to(losses.device)), rows)
    if not losses.requires_grad:
        raise InvalidValueError(
            "losses must depend on the trainable parameters of the model, got losses without a "
            "graph: compute them from private.model(inputs), with gradients enabled"
        )
    if len(rows) < len(losses):
        with torch.enable_grad():
            losses = losses / rows.repeat_interleave(rows).to(losses)
    with full_precision(losses.device.type):
        recording.note_memory()
        parts, slow = _compute_contributions(recording, losses)
        recorder.uses.clear()  # their inputs are kept as long as they are needed
        if slow:
            _warn_fallbacks(recording.cache, slow)
        return _clip_and_sum(recorder, losses, parts, [*slow], clip, rows, weights)


def mean_over_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return the mean over the rows that are clipped together.

    >>> mean_over_rows(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 2]))
    tensor([1., 3.])
    """
    if len(rows) == len(values):
        return values
    owners = torch.arange(len(rows)).repeat_interleave(rows).to(values.device)
    sums = values.new_zeros(len(rows), *values.shape[1:]).index_add_(0, owners, values)
    return sums / rows.to(values).view(-1, *(1,) * (values.dim() - 1))


def _compute_contributions(
    recording: RecordedBatch, losses: Tensor
) -> tuple[dict[str, Contribution], dict[str, str]]:
    """Return the contributions by rules, and the parameters without one, with the reason.

    Losses and rules are checked here, unless an earlier batch has shown that they are right.
    """
    recorder, cache = recording.recorder, recording.cache
    slow = _slow_before_gradients(recorder, losses)
    unchecked = _unchecked_parameters(recorder, cache, slow)
    # A call of a single record was compared with nothing: it may turn out to have no rule.
    keep_graph = bool(slow or unchecked) or recorder.records == 1
    gradients = _gradients_at_uses(recording, losses, slow, keep_graph=keep_graph)
    if locate_rows(recorder, losses, gradients):
        unchecked = _unchecked_parameters(recorder, cache, slow)
    uses, at_uses = recorder.uses, gradients
    if unchecked:  # which needs them again
        uses, at_uses = [*uses], {**gradients}
    parts, repeated = apply_rules(recorder, uses, at_uses, slow)
    for call_name in repeated:
        warn_once(cache, f"{call_name}: no rule, so this call is repeated for every record")
    to_compare = [name for name in unchecked if name not in slow]
    if to_compare:
        wrong, is_shown = find_mismatches(recorder, losses, parts, to_compare, gradients)
        slow |= dict.fromkeys(
            sorted(wrong), "its gradient by rules is not what plain autograd gives"
        )
        unchecked = unchecked if is_shown else []
    if unchecked:
        _remember(recorder, cache, gradients, unchecked, slow)
    return {name: part for name, part in parts.items() if name not in slow}, slow


def _gradients_at_uses(
    recording: RecordedBatch, losses: Tensor, slow: Mapping[str, str], *, keep_graph: bool
) -> dict[int, Gradients]:
    """Return position of a use → the gradients of its outputs, by one backward pass.

    It also reaches the outputs of the model: those that depend on other records must not lead to
    losses, and every loss must depend on the outputs for its own record alone.
    """
    recorder, cache = recording.recorder, recording.cache
    # The rows of several calls may be in different orders, in any batch.
    is_undecided = cache.losses < MAX_ATTEMPTS or recording.calls > 1
    checks_rows = is_undecided and recorder.records > 1
    outputs = [each for each in recording.outputs if checks_rows or each.refusal is not None]
    uses = [k for k, use in enumerate(recorder.uses) if not {*use.names} <= {*slow}]
    edges = [e for k in uses for e in recorder.uses[k].edges if e is not None]
    of_half = gradients_of_half(losses, outputs) if checks_rows else []
    found = gradients_at(
        losses,
        [*edges, *(output.edge for output in outputs)],
        keep_graph=keep_graph,
    )
    at_outputs = found[len(edges) :]
    for output, gradient in zip(outputs, at_outputs, strict=True):
        if gradient is not None and output.refusal is not None:
            raise InvalidValueError(output.refusal)
    if checks_rows:
        check_own_rows(losses, outputs, of_half, at_outputs)
        seen = [g is not None and bool(torch.isfinite(g).all()) for g in at_outputs]
        if any(ok and not each.is_alike for ok, each in zip(seen, outputs, strict=True)):
            cache.losses += MAX_ATTEMPTS if recorder.records >= ENOUGH_RECORDS else 1
    if edges and all(gradient is None for gradient in found):
        raise InvalidValueError(
            "losses must come from the calls of the model with this batch, got losses that do not: "
            "compute them from private.model(inputs) with the batch that was given last"
        )
    ahead = iter(found)
    return {
        k: [None if edge is None else next(ahead) for edge in recorder.uses[k].edges] for k in uses
    }


def _slow_before_gradients(recorder: Recorder, losses: Tensor) -> dict[str, str]:
    """Return the parameters that are known to be without a rule, with the reason."""
    unseen = unseen_parameters(recorder, losses)
    slow = dict.fromkeys(sorted(unseen), "it is used where the engine cannot see it")
    for name, parameter in recorder.parameters.items():
        if parameter._backward_hooks:
            slow.setdefault(name, _HOOKED)
    for use in recorder.uses:
        reason = None if {*use.names} <= {*slow} else reason_for_fallback(use, recorder)
        if reason is not None:
            slow.update({name: slow.get(name, reason) for name in use.names})
    return slow


def _keys(recorder: Recorder) -> dict[str, set[object]]:
    keys: dict[str, set[object]] = {}
    for use in recorder.uses:
        for name in use.names:
            keys.setdefault(name, set()).add(use.key)
    return keys


def _unchecked_parameters(recorder: Recorder, cache: CheckCache, slow: dict[str, str]) -> list[str]:
    """Return the parameters with uses that were never compared with plain autograd.

    Those that were, and differed, are added to the slow ones. A single record shows nothing, and
    nothing can go wrong with it.
    """
    if recorder.records == 1:
        return []
    found = []
    for name, keys in _keys(recorder).items():
        if name in slow:
            continue
        if (name, frozenset(keys)) in cache.failed:
            slow[name] = cache.failed[name, frozenset(keys)]
        elif None in keys or not keys <= cache.verified.get(name, set()):
            found.append(name)
    return found


def _remember(
    recorder: Recorder,
    cache: CheckCache,
    gradients: Mapping[int, Gradients],
    names: Iterable[str],
    slow: Mapping[str, str],
) -> None:
    """Remember which parameters the rules can compute, if there was a gradient to compare."""
    keys = _keys(recorder)
    for name in names:
        if name in slow and None not in keys[name]:
            cache.failed[name, frozenset(keys[name])] = slow[name]
    shown = {*names} - {*slow}
    for position, found in gradients.items():
        use = recorder.uses[position]
        own = shown & {*use.names}
        if own and any(gradient is not None and bool(gradient.any()) for gradient in found):
            for name in own:
                cache.verified.setdefault(name, set()).add(use.key)


def _clip_and_sum(
    recorder: Recorder,
    losses: Tensor,
    parts: dict[str, Contribution],
    slow: list[str],
    clip: Clip,
    rows: Tensor,
    weights: Tensor | None,
) -> ClippedSum:
    """Clip and add up, in chunks of records where there are many rows, or gradients one by one."""
    size = sum(recorder.parameters[name].numel() for name in slow)
    most = max(1, MAX_KEPT // max(1, size)) if slow else len(rows)
    with torch.enable_grad():
        together = losses.split(rows.tolist()) if slow else ()
    found, first, start = [], 0, 0
    for counts in (part for some in split_rows(rows, _MOST_ROWS) for part in some.split(most)):
        stop, end = start + len(counts), first + int(counts.sum())
        chosen = {name: _chosen(part, slice(first, end), counts) for name, part in parts.items()}
        if stop == len(rows):
            parts.clear()  # so that each may go when it was added up
        if slow:
            chosen |= _by_autograd(recorder, together[start:stop], slow)
        sums, norms = dict[str, Tensor](), losses.new_zeros(len(counts))
        if chosen:
            own = None if weights is None else weights[start:stop]
            sums, norms = sum_clipped(chosen, clip, own)
        found.append(ClippedSum(_complete(sums, recorder.parameters), norms))
        first, start = end, stop
    total = join(found)
    if slow and len(rows) > 1 and bool(torch.isinf(total.norms).all()):
        raise InvalidValueError(
            f"losses must have finite gradients where {slow[0]} is computed record by record: "
            "there one record that is not finite makes all of them NaN; remove it from the dataset"
        )
    return ClippedSum(total.gradients, total.norms.to(accumulation_dtype(losses.dtype)))


def split_rows(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the rows of users in parts of at most ``size`` rows, or of one user with more.

    >>> [part.tolist() for part in split_rows(torch.tensor([1, 2, 2, 5]), 4)]
    [[1, 2], [2], [5]]
    """
    if int(rows.sum()) <= size:
        yield rows
        return
    start, total = 0, 0
    for place, count in enumerate(rows.tolist()):
        if total and total + count > size:
            yield rows[start:place]
            start, total = place, 0
        total += count
    yield rows[start:]


def _chosen(part: Contribution, rows: slice, counts: Tensor) -> Clippable:
    """Return the contribution of records that have so many of these rows each."""
    chosen = part if rows.stop - rows.start == part.records else part.select(rows)
    return chosen if chosen.records == len(counts) else chosen.merge(counts)


def _by_autograd(
    recorder: Recorder, losses: Sequence[Tensor], names: list[str]
) -> dict[str, Clippable]:
    """Return one gradient per record by plain autograd, through the graph of its losses."""
    parameters = [recorder.parameters[name] for name in names]
    with torch.enable_grad():
        totals = [each.sum() for each in losses]
    found = [
        torch.autograd.grad(
            total, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for total in totals
    ]
    made: dict[str, Clippable] = {}
    for name, gradients in zip(names, zip(*found, strict=True), strict=True):
        stacked = torch.stack([each.to_dense() if each.is_sparse else each for each in gradients])
        made[name] = PerRecord(stacked.to(accumulation_dtype(stacked.dtype)))
    return made


def join(found: list[ClippedSum]) -> ClippedSum:
    """Return the sum over microbatches, added up in float64."""
    if len(found) == 1:
        return found[0]
    gradients = {name: total.double() for name, total in found[0].gradients.items()}
    for each in found[1:]:
        for name, total in each.gradients.items():
            gradients[name] += total
    types = {name: total.dtype for name, total in found[0].gradients.items()}
    gradients = {name: total.to(types[name]) for name, total in gradients.items()}
    return ClippedSum(gradients, torch.cat([each.norms for each in found]))


def _complete(sums: dict[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made = zeros_for({name: p for name, p in parameters.items() if name not in sums})
    for name, total in sums.items():
        made[name] = total.to(accumulation_dtype(parameters[name].dtype)).contiguous()
    return {name: made[name] for name in parameters}


def zeros_for(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum over no records."""
    return {
        name: torch.zeros_like(p, dtype=accumulation_dtype(p.dtype))
        for name, p in parameters.items()
    }


def _warn_fallbacks(cache: CheckCache, slow: Mapping[str, str]) -> None:
    by_reason: dict[str, list[str]] = {}
    for name, reason in slow.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warn_once(
            cache,
            f"{shown}: {reason}, so it is computed record by record, which is correct but slow; "
            "private.microbatches(batch, 8) makes it faster",
        )


def warn_once(cache: CheckCache, note: str) -> None:
    """Warn that something is slow, once per model."""
    if note not in cache.warned:
        cache.warned.add(note)
        warnings.warn(note, FallbackWarning, stacklevel=6)
