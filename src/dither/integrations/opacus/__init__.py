"""A plan drives the noise and the learning rate of Opacus, and an accountant of ours prices it.

`NoiseSchedule` walks along a plan: step t of an Opacus ``DPOptimizer`` has the plan's noise
multiplier z_t, and every group's learning rate times the plan's step size η_t. What would make
the plan's claim untrue is refused. `DitherAccountant` prices a history of unequal steps by the
privacy loss distribution; importing this module registers it, so that
``PrivacyEngine(accountant="dither")`` finds it.

What is claimed: (ε, δ) for adding or removing one record, with Poisson sampling, of the mechanism
that Opacus would compute with exact numbers. Sampling, clipping and noise stay Opacus' own, in the
precision of the parameters and with the generator that Opacus was given: what rounding gives away,
or a generator that is not cryptographic, is not counted. Opacus derives the sampling rate and the
expected batch size from the length of the dataset, which must therefore be public.
"""

try:
    from opacus.accountants import register_accountant
except ImportError as missing:
    raise ImportError(
        "dither.integrations.opacus needs Opacus 1.6 or newer: pip install 'dither[opacus]'"
    ) from missing

from dither.integrations.opacus.accountant import DitherAccountant
from dither.integrations.opacus.noise_schedule import NoiseSchedule

__all__ = ["DitherAccountant", "NoiseSchedule"]

register_accountant(DitherAccountant.mechanism(), DitherAccountant, force=True)
