"""dither attacks itself: canaries, and lower bounds on ε that an attacker can prove.

- `audit` attacks the mechanism of a plan, through the training that everybody uses.
- `one_run` reads the canaries of a real run: `mislabelled` or `out_of_distribution` records that
  were mixed into its data by a coin each.
- `independent_bound` and `one_run_bound` are the statistics, for attacks of one's own.

A lower bound that stays below the claim does not prove the claim; one above it refutes it.
"""

from dither.audit.auditing import ATTACKS, audit, one_run
from dither.audit.bounds import independent_bound, one_run_bound
from dither.audit.canaries import Canaries, mislabelled, out_of_distribution
from dither.audit.result import AuditResult, Breach
from dither.audit.tradeoff import Allowed, allowed_by

__all__ = [
    "ATTACKS",
    "Allowed",
    "AuditResult",
    "Breach",
    "Canaries",
    "allowed_by",
    "audit",
    "independent_bound",
    "mislabelled",
    "one_run",
    "one_run_bound",
    "out_of_distribution",
]
