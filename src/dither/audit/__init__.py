"""Audits: canaries, attacks, and lower bounds on ε that an attack proves.

- `audit` attacks the mechanism of a plan, through real private training.
- `one_run` uses the canaries of a real run: `mislabelled` or `out_of_distribution` records, each
  included in its data with probability 1/2.
- `independent_bound` and `one_run_bound` are the statistics, for attacks of one's own.

A lower bound below the claim does not prove the claim; one above it refutes it.
"""

from dither.audit.auditing import ATTACKS, audit, one_run
from dither.audit.bounds import independent_bound, one_run_bound
from dither.audit.canaries import Canaries, mislabelled, out_of_distribution
from dither.audit.result import Allowed, AuditResult, Breach, allowed_by

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
