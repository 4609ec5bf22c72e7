"""From a clipped sum to what may be released: the only place where noise is drawn.

One step releases round(Σ clip(g_i) + C·z_t·N(0, I)) on a grid. Three things keep the real numbers'
proof true for floating-point ones:

- *The noise is as fine as a double.* Words of 64 bits from a cryptographic stream become normals
  that differ by at most 2^(−50) from the next one, and in the tails by at most 2^(−40) up to 5.6
  standard deviations: see `dither.normals`.
- *What is released lies on a grid.* Noise and sum are added in float64 and rounded to a multiple of
  a power of two near C·z_t·2^(−20): 2^20 grid points per standard deviation, and at least 2^20
  values of the noise per grid point. Which floating-point numbers can be released no longer depends
  on the sum, as attacks on the last bits of floating-point noise require (Mironov 2012). Rounding
  to the grid is post-processing and costs nothing.
- *Sums are rounded, too.* Rounding in float32 changes a sum slightly, and differently without one
  of its records, so that a record can change it by slightly more than the clip norm. The noise is
  made wider by `margin`: a thousandth, and a float32 roundoff for every record. That is several
  times what was measured on records whose gradients all point the same way, where rounding is
  worst, up to 65,536 records; it also covers norms that are right to five digits. All that is used
  of clipping is that no record contributes more than the clip norm and that sums are taken with
  factors of at most 1, which holds for automatic clipping as well as for flat clipping: see
  `dither.clipping.clip.Clip`. There every record is as long as one that flat clipping shortens.

Correlated noise is computed in float64, too, from the noise of the last steps, before it is
rounded. Rounding remains post-processing: what is rounded in one step is not used in the next.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import numpy as np
import torch
from torch import Tensor

from dither import validate
from dither.clipping import ClippedSum
from dither.normals import for_each_block
from dither.philox import DeviceNormals
from dither.planning import Plan, ReactivePlan
from dither.randomness import Stream
from dither.types import FloatArray

_GRID = 2.0**-20
_SERIAL = 2**15  # elements up to which torch works on one thread
_AT_ONCE = 2**22  # elements for which an accelerator draws noise at once


@final
@dataclass(frozen=True, eq=False)
class ReleasedGradient:
    """A gradient with noise, which an optimizer, a reactive schedule or a callback may see.

    Attributes:
        gradients: parameter name → noisy sum divided by the expected batch size.
        noise: standard deviation of the noise in each of its coordinates.
        dimension: d, the number of coordinates.

    Example:
        >>> noisy = ReleasedGradient({"weight": torch.tensor([3.0, 4.0])}, noise=1.0, dimension=2)
        >>> noisy.squared_norm()
        25.0
    """

    gradients: dict[str, Tensor]
    noise: float
    dimension: int

    def squared_norm(self) -> float:
        """Return ‖g‖² over all parameters, noise included."""
        return float(
            sum(torch.linalg.vector_norm(g.double()) ** 2 for g in self.gradients.values())
        )


@dataclass(frozen=True)
class ReleaseFacts:
    """What all ranks of a run know about a release besides its gradients.

    Attributes:
        step: how many steps were released before it.
        noise_multiplier: z.
        noise: standard deviation of the noise in a coordinate.
        dimension: the number of coordinates.
        energy: ‖g‖²; nan where no step size depends on it.
        raw_squared_norm: of the mean without noise; nan except for rules that claim no ε.
    """

    step: int
    noise_multiplier: float
    noise: float
    dimension: int
    energy: float
    raw_squared_norm: float

    def squared_norm(self) -> float:
        """Return ‖g‖²."""
        return self.energy


@final
class Ring:
    """The noise of the last steps, from which correlated noise is computed; never shown or saved.

    Vector u_t = ξ_t − Σ_s θ_s·u_{t−s} of float64 is kept for b − 1 steps: 8·(b − 1) bytes per
    parameter. Step t adds ν_t·u_t times its noise multiplier. Where the step before was not
    released, or had other coordinates, as after a parameter was frozen, the ring begins again with
    nothing in it: columns of B that end earlier are shorter, and cost less. A ring that paused
    would reach further than b steps.

    Args:
        coefficients: θ_0 = 1 … θ_{b−1}.
        norms: ν_t of every step, of the columns of B before they are divided by it.

    Example:
        >>> ring = Ring((1.0, 0.5), np.array([1.25, 1.0]))
        >>> for step in range(2):
        ...     norm = ring.begin_step(step, [("weight", 2)])
        ...     norm, ring.correlate(torch.tensor([1.0, 2.0], dtype=torch.float64)).tolist()
        (1.25, [1.0, 2.0])
        (1.0, [0.5, 1.0])
    """

    def __init__(self, coefficients: tuple[float, ...], norms: FloatArray) -> None:
        self._norms = norms
        self._theta = torch.tensor(coefficients[:0:-1], dtype=torch.float64)
        self._layout: object = None
        self._past = torch.zeros(len(self._theta), 0, dtype=torch.float64)
        self._step = self._start = 0

    @classmethod
    def of(cls, plan: Plan | ReactivePlan) -> "Ring | None":
        """Return a ring with nothing in it, if the plan's noise is correlated."""
        if not isinstance(plan, Plan) or plan.correlation is None:
            return None
        return cls(plan.correlation, plan.column_norms)

    def begin_step(self, step: int, layout: Sequence[tuple[str, int]]) -> float:
        """Begin step t, whose vector has parts of these names and sizes; return ν_t."""
        size = sum(number for _, number in layout)
        if (step - 1, layout, size) != (self._step, self._layout, self._start):
            self._past = torch.zeros(len(self._theta), size, dtype=torch.float64)
        self._step, self._layout, self._start = step, layout, 0
        return float(self._norms[step])

    def correlate(self, normals: Tensor) -> Tensor:
        """Return the next coordinates of u_t, from as many standard normals."""
        place = slice(self._start, self._start + normals.numel())
        oldest = self._step % len(self._theta)
        past = self._past[:, place]
        u = normals - self._theta.roll(oldest) @ past
        past[oldest] = u
        self._start = place.stop
        return u


def release(
    clipped: ClippedSum,
    *,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    stream: Stream,
    ring: Ring | None = None,
    step: int = 0,
) -> ReleasedGradient:
    """Add noise to a clipped sum and divide by the expected batch size.

    Guarantees: the sum gets noise of at least ``clip_norm``·``noise_multiplier`` in every
    coordinate, from a stream that is used for nothing else.

    Args:
        clipped: the sum; its tensors are not changed.
        clip_norm: C_G, to which every record was clipped; may be infinite where there is no noise.
        noise_multiplier: z_t; 0 adds nothing, for comparisons without privacy.
        batch_size: m, expected and public, whatever batch was drawn.
        stream: the source of random bits.
        ring: of the run, for correlated noise.
        step: the number of the step in its plan, which the ring needs.

    Example:
        >>> from dither.randomness import Source
        >>> total = ClippedSum({"weight": torch.tensor([256.0, -256.0])}, torch.ones(256))
        >>> noisy = release(total, clip_norm=1.0, noise_multiplier=2.0, batch_size=256,
        ...                 stream=Source(seed=1).stream("noise", 0))
        >>> noisy.gradients["weight"], round(noisy.noise, 5)
        (tensor([ 1.0078, -0.9912]), 0.00782)
    """
    z = validate.nonnegative(noise_multiplier=noise_multiplier)
    z = z if z == 0.0 else validate.positive(noise_multiplier=noise_multiplier)
    m = validate.count(batch_size=batch_size)
    if z > 0.0:
        C = validate.positive(clip_norm=clip_norm)
    scale = z * C * (1.0 + margin(m)) if z > 0.0 else 0.0
    if ring is not None:
        layout = [(name, each.numel()) for name, each in clipped.gradients.items()]
        scale *= ring.begin_step(step, layout)
    sums = [*clipped.gradients.values()]
    noisy = add_noise(sums, scale, m, stream, ring) if scale > 0.0 else [each / m for each in sums]
    dimension = sum(each.numel() for each in sums)
    return ReleasedGradient(dict(zip(clipped.gradients, noisy, strict=True)), scale / m, dimension)


def margin(batch_size: int) -> float:
    """Return the relative increase of the noise that covers rounding of sums and norms."""
    return 1e-3 + batch_size * 2.0**-24


def add_noise(
    sums: Sequence[Tensor], scale: float, divisor: int, stream: Stream, ring: Ring | None = None
) -> list[Tensor]:
    """Return sums with noise, rounded to the grid in float64, and divided.

    It works on as many threads as torch does, and the noise is the same for any number of them and
    on every device. On accelerators the noise is drawn by `dither.philox`, unless it is seeded, so
    that it is needed again, or correlated.
    """
    grid = 2.0 ** math.floor(math.log2(scale * _GRID))
    released = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in sums]
    pairs = [(each.reshape(-1), new.view(-1)) for each, new in zip(sums, released, strict=True)]

    if ring is None and not stream.is_seeded and has_generator(sums):
        _add_on_device(pairs, grid, scale, divisor, stream)
        return released
    ends = [*accumulate(each.numel() for each in sums)]

    def add(start: int, normals: FloatArray) -> None:
        if ring is not None:
            normals = ring.correlate(torch.from_numpy(normals)).numpy()
        normals *= scale / grid
        parts = list(_parts(torch.from_numpy(normals), start, ends))
        for index, place, noise in parts:
            noise.add_(pairs[index][0][place].to("cpu"), alpha=1.0 / grid)
        np.rint(normals, out=normals)
        normals *= grid / divisor
        for index, place, noise in parts:
            pairs[index][1][place].copy_(noise)

    threads = torch.get_num_threads() if ring is None else 1  # its product has threads of its own
    for_each_block(add, ends[-1] if ends else 0, stream, threads)
    return released


def has_generator(sums: Sequence[Tensor]) -> bool:
    """Return whether all are on accelerators that compute in float64."""
    return bool(sums) and all(each.device.type not in ("cpu", "mps") for each in sums)


def _add_on_device(
    pairs: Sequence[tuple[Tensor, Tensor]], grid: float, scale: float, divisor: int, stream: Stream
) -> None:
    """Write the first of each pair with noise to the second."""
    drawn = DeviceNormals(stream)
    for values, released in pairs:
        for part, new in zip(values.split(_AT_ONCE), released.split(_AT_ONCE), strict=True):
            noise = drawn.draw(part.numel(), part.device).mul_(scale / grid)
            noisy = noise.add_(part, alpha=1.0 / grid).round_()
            torch.mul(noisy, grid / divisor, out=new)


def _parts(block: Tensor, start: int, ends: Sequence[int]) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield the parts of a block: the tensor where each belongs, its place there, and itself."""
    while block.numel():
        index = bisect_right(ends, start)
        first = start - (ends[index - 1] if index else 0)
        count = min(block.numel(), ends[index] - start, _SERIAL)
        yield index, slice(first, first + count), block[:count]
        block, start = block[count:], start + count
