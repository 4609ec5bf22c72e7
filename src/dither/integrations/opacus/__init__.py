"""A plan sets the noise and the learning rate of Opacus, and `dither.epsilon` accounts for it.

`NoiseSchedule` makes an Opacus ``DPOptimizer`` follow a plan: step t has the plan's noise
multiplier z_t, and every group's learning rate times the plan's step size η_t. `DitherAccountant`
composes a history of unequal steps by the privacy loss distribution; importing this module
registers it, so that ``PrivacyEngine(accountant="dither")`` finds it.

The claim: (ε, δ) for adding or removing one record, with Poisson sampling, of the mechanism that
Opacus would compute with exact numbers. Sampling, clipping and noise are those of Opacus, in the
precision of the parameters and with the generator that Opacus was given: leakage by rounding, or by
a generator that is not cryptographic, is not counted. Opacus derives the sampling rate and the
expected batch size from the length of the dataset, which must therefore be public.
"""

try:
    import opacus.utils.uniform_sampler as _opacus  # noqa: F401 (an error of our own without it)
except ImportError as missing:
    raise ImportError(
        "dither.integrations.opacus needs Opacus 1.6 or newer: pip install 'dither[opacus]'"
    ) from missing

from dither.integrations.opacus.accountant import DitherAccountant
from dither.integrations.opacus.schedule import NoiseSchedule

__all__ = ["DitherAccountant", "NoiseSchedule"]
