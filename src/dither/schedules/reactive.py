"""Step sizes that react to the gradients: AdaGrad-Norm, from released gradients only.

The paper's Algorithm 1 lets b grow with the norm of the *raw* gradient and divides the release by
it; its privacy proof does not cover that. Here b grows with what was released, which is
post-processing and costs nothing, and the energy that the known noise adds to it is subtracted.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

from dither import validate

_PERIOD = 195


@final
@dataclass(frozen=True)
class Growth:
    """How far b has grown.

    Attributes:
        steps: t, the number of gradients that were taken in.
        b_squared: b_t².
        total: Σ β_s·(‖g_s‖² − noise), what the gradients have added up to.

    Example:
        >>> Growth(steps=1, b_squared=9.0).b
        3.0
    """

    steps: int
    b_squared: float
    total: float = 0.0

    @property
    def b(self) -> float:
        """b_t."""
        return math.sqrt(self.b_squared)


@dataclass(frozen=True)
class Reactive(ABC):
    """A rule for b; step t has the step size 1/b_{t+1}, times the optimizer's learning rate.

    Args:
        b0_squared: b_0², positive.
        nu: ν, the least growth of b² in a step, positive.
        beta: β of the weights β_t = max(β/((t mod 195) + 1), 1); None makes every weight 1.

    Example:
        >>> rule = AdaGradNorm(b0_squared=4.0, nu=0.01, beta=3.0)
        >>> isinstance(rule, Reactive), rule.weight(0), rule.weight(2)
        (True, 3.0, 1.0)
    """

    b0_squared: float
    nu: float
    beta: float | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name in ("b0_squared", "nu") if self.beta is None else ("b0_squared", "nu", "beta"):
            object.__setattr__(self, name, validate.positive(**{name: getattr(self, name)}))

    def start(self) -> Growth:
        """Return b_0."""
        return Growth(0, self.b0_squared)

    def weight(self, step: int) -> float:
        """Return β_t."""
        return 1.0 if self.beta is None else max(self.beta / (step % _PERIOD + 1), 1.0)

    @abstractmethod
    def after(self, before: Growth, squared_norm: float, noise: float) -> Growth:
        """Return the growth after one more gradient.

        Args:
            before: the growth before it.
            squared_norm: ‖g_t‖².
            noise: d·(C·z_t/m)², what the noise is expected to add to that.
        """


@final
@dataclass(frozen=True)
class AdaGradNorm(Reactive):
    """b_{t+1}² = max(b_t², b_0² + max(Σ_{s≤t} β_s·(‖g_s‖² − d·(C·z_s/m)²), (t+1)·ν)).

    g_s is the released mean. The noise's energy is subtracted from the complete sum: step by
    step, with each difference raised to ν, the rest of the noise would add up.

    >>> rule = AdaGradNorm(b0_squared=4.0, nu=0.01)
    >>> rule.after(rule.start(), squared_norm=6.0, noise=1.0)
    Growth(steps=1, b_squared=9.0, total=5.0)
    """

    def after(self, before: Growth, squared_norm: float, noise: float) -> Growth:
        """Return the growth after a released gradient."""
        t = before.steps
        added = self.weight(t) * (squared_norm - noise)
        total = before.total + (added if math.isfinite(added) else 0.0)
        grown = self.b0_squared + max(total, (t + 1) * self.nu)
        return replace(before, steps=t + 1, b_squared=max(before.b_squared, grown), total=total)


@final
@dataclass(frozen=True)
class UnsafeRawAdaGradNorm(Reactive):
    """The paper's literal rule, b_{t+1}² = b_t² + max(β_t·‖∇f‖², ν) with the raw gradient.

    Unsafe: the step size reveals the raw gradient's norm, which no noise protects. A run that
    uses it claims no ε; it is for reproducing the paper's figures.

    >>> rule = UnsafeRawAdaGradNorm(b0_squared=4.0, nu=0.01)
    >>> rule.after(rule.start(), squared_norm=5.0, noise=0.0).b
    3.0
    """

    def after(self, before: Growth, squared_norm: float, noise: float) -> Growth:
        """Return the growth after a raw gradient; noise is not in it."""
        t = before.steps
        grown = max(self.weight(t) * squared_norm, self.nu)
        return replace(before, steps=t + 1, b_squared=before.b_squared + grown)
