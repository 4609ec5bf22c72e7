"""From a clipped sum to what may be released: the only place where noise is drawn.

One step releases round(Σ clip(g_i) + C·z_t·N(0, I)) on a grid. Three things keep the real numbers'
proof true for floating-point ones:

- *The noise is as fine as a double.* Pairs of 64-bit words from a cryptographic stream become pairs
  of normals (Box and Muller): a radius from a 63-bit uniform that reaches 9.3 standard deviations,
  and an angle from a 64-bit one.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from dither import validate
from dither.clipping import ClippedSum
from dither.planning import Plan, ReactivePlan
from dither.randomness import Stream
from dither.types import FloatArray

_GRID = 2.0**-20
_HALF_BLOCK = 2**16


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
        (tensor([ 1.0058, -0.9985]), 0.00782)
    """
    z = validate.nonnegative(noise_multiplier=noise_multiplier)
    z = z if z == 0.0 else validate.positive(noise_multiplier=noise_multiplier)
    m = validate.count(batch_size=batch_size)
    if z > 0.0:
        C = validate.positive(clip_norm=clip_norm)
    scale = z * C * (1.0 + margin(m)) if z > 0.0 else 0.0
    noisy: dict[str, Tensor] = {}
    groups = _names_by_type(clipped)
    if ring is not None:
        layout = [(n, clipped.gradients[n].numel()) for names in groups for n in names]
        scale *= ring.begin_step(step, layout)
    for names in groups:
        parts = [clipped.gradients[name] for name in names]
        flat = torch.cat([part.reshape(-1) for part in parts])
        if scale > 0.0:
            add_noise(flat, scale, stream, ring)
        chunks = flat.div_(m).split([part.numel() for part in parts])
        for name, chunk, part in zip(names, chunks, parts, strict=True):
            noisy[name] = chunk.view_as(part)
    dimension = sum(part.numel() for part in noisy.values())
    ordered = {name: noisy[name] for name in clipped.gradients}
    return ReleasedGradient(ordered, scale / m, dimension)


def margin(batch_size: int) -> float:
    """Return the relative increase of the noise that covers rounding of sums and norms."""
    return 1e-3 + batch_size * 2.0**-24


def add_noise(values: Tensor, scale: float, stream: Stream, ring: Ring | None = None) -> None:
    """Replace a vector by itself plus noise, in float64, rounded to the grid."""
    grid = 2.0 ** math.floor(math.log2(scale * _GRID))
    start = 0
    for normals in _noise_blocks(values.numel(), scale / grid, stream, ring):
        part = values[start : start + normals.numel()]
        start += normals.numel()
        noisy = normals.to(part.device).add_(part, alpha=1.0 / grid).round_()
        torch.mul(noisy, grid, out=part)


def _noise_blocks(count: int, scale: float, stream: Stream, ring: Ring | None) -> Iterator[Tensor]:
    if ring is None:
        return normal_blocks(count, scale, stream)
    return (ring.correlate(each).mul_(scale) for each in normal_blocks(count, 1.0, stream))


def normal_blocks(count: int, scale: float, stream: Stream) -> Iterator[Tensor]:
    """Yield float64 vectors of ``count`` normals in total; each is overwritten by a later one.

    A block fits into the cache of a core, where all arithmetic on it is done.
    """
    half = min(_HALF_BLOCK, (count + 1) // 2)
    words = np.empty(2 * half, np.int64)
    raw, bits = words.view(np.uint8), torch.from_numpy(words)
    uniforms, cosines = torch.empty(2 * half, dtype=torch.float64), torch.empty(half).double()
    radius, angle = uniforms[:half], uniforms[half:]
    while count > 0:
        stream.fill(raw)
        uniforms.copy_(bits)
        # |word| + 1/2 is uniform on (0, 2^63), and its logarithm finite.
        radius.abs_().add_(0.5).mul_(2.0**-63).log_().mul_(-2.0 * scale * scale).sqrt_()
        angle.mul_(math.pi * 2.0**-63)
        torch.cos(angle, out=cosines)
        yield cosines.mul_(radius)[:count]
        count -= half
        if count > 0:
            yield angle.sin_().mul_(radius)[:count]
            count -= half


def _names_by_type(clipped: ClippedSum) -> list[list[str]]:
    """Return the names in groups of one type on one device, which are noised together."""
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, gradient in clipped.gradients.items():
        groups.setdefault((gradient.device, gradient.dtype), []).append(name)
    return list(groups.values())
