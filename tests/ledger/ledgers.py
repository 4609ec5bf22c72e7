"""Plans and runs for the tests of the ledger."""

from pathlib import Path

from dither import Plan
from dither.ledger import Account, Ledger

N, M = 1000, 20


def plan(z: float = 2.0, steps: int = 30, batch: int = M, sampling: str = "poisson") -> Plan:
    return Plan.from_noise_multipliers(
        [z] * steps, delta=1e-5, dataset_size=N, batch_size=batch, sampling=sampling
    )


def charge(account: Account, plan: Plan, first: int = 0, last: int | None = None) -> None:
    """Charge some steps of a plan."""
    for step in range(first, plan.steps if last is None else last):
        z = float(plan.noise_multipliers[step])
        account.begin(step, z)
        account.finish(step, z)


def run_all(ledger: Ledger, *plans: Plan) -> None:
    """Register all plans, then run them."""
    for account, each in [(ledger.register(each), each) for each in plans]:
        charge(account, each)
        account.end()


def new(folder: Path) -> Ledger:
    return Ledger(folder / "shared.sqlite")
