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
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from dither import validate
from dither.clipping import ClippedSum
from dither.randomness import Stream

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


def release(
    clipped: ClippedSum,
    *,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    stream: Stream,
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
    for names in _names_by_type(clipped):
        parts = [clipped.gradients[name] for name in names]
        flat = torch.cat([part.reshape(-1) for part in parts])
        if scale > 0.0:
            add_noise(flat, scale, stream)
        chunks = flat.div_(m).split([part.numel() for part in parts])
        for name, chunk, part in zip(names, chunks, parts, strict=True):
            noisy[name] = chunk.view_as(part)
    dimension = sum(part.numel() for part in noisy.values())
    ordered = {name: noisy[name] for name in clipped.gradients}
    return ReleasedGradient(ordered, scale / m, dimension)


def margin(batch_size: int) -> float:
    """Return the relative increase of the noise that covers rounding of sums and norms."""
    return 1e-3 + batch_size * 2.0**-24


def add_noise(values: Tensor, scale: float, stream: Stream) -> None:
    """Replace a vector by itself plus noise, in float64, rounded to the grid."""
    grid = 2.0 ** math.floor(math.log2(scale * _GRID))
    start = 0
    for normals in normal_blocks(values.numel(), scale / grid, stream):
        part = values[start : start + normals.numel()]
        start += normals.numel()
        noisy = normals.to(part.device).add_(part, alpha=1.0 / grid).round_()
        torch.mul(noisy, grid, out=part)


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
