"""A plan that sets the noise and the learning rate of an Opacus optimizer."""

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dither.integrations.opacus.draws import Draws
from dither.integrations.opacus.refusals import (
    changed_parameters,
    changed_rates,
    check_optimizer,
    check_plan,
    other_rate,
    other_settings,
    sampler_of,
    several_batches,
)
from dither.planning import Plan
from dither.training import StepError
from dither.training.agreement import check_single_process
from dither.types import PrivacyBound
from dither.validate import InvalidValueError


@final
class NoiseSchedule:
    """Drives an Opacus optimizer along a plan.

    Guarantees: as long as the optimizer is fed from the data loader that was shown to `drive`, with
    every batch as it is drawn, all releases together cost no more than ``plan.bound`` says. A step
    is counted before its noise is drawn. Microbatches of Opacus' ``BatchMemoryManager`` are
    one step, with one noise.

    Refused, each with a message that says what to do: a step beyond the plan, another clip norm,
    expected batch size or reduction than the plan's, a noise multiplier or learning rate that
    was changed elsewhere, learning rate schedulers, several batches in one step, more steps
    than batches were drawn, a batch that is left before its last microbatch, and optimizers and
    data loaders that do something else than the plan's mechanism.

    Not seen: batches from elsewhere than that data loader, one batch used twice and another not at
    all, a record that stands in the dataset more than once, and calls of
    ``optimizer.signal_skip_step`` that join several batches.

    Args:
        plan: a `dither.Plan` with Poisson sampling.

    Example:
        >>> import dither
        >>> plan = dither.plan(
        ...     epsilon=2.0, delta=1e-5, dataset_size=2000, batch_size=100, steps=40)
        >>> NoiseSchedule(plan).remaining
        40
    """

    def __init__(self, plan: Plan) -> None:
        check_plan(plan)
        self.plan = plan
        self._state = plan.new_state()
        self._optimizer: Any = None
        self._inner_pre_step: Callable[..., Any]
        self._sampler: Any = None
        self._draws: Draws
        self._rates: list[float] = []
        self._trained: list[int] = []
        self._factor: float | None = None
        self._hooks: list[Any] = []

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._state.steps

    @property
    def remaining(self) -> int:
        """How many steps of the plan are left."""
        return self.plan.steps - self._state.steps

    def bound(self) -> PrivacyBound:
        """Return what the steps so far cost; after the last step, the plan's bound."""
        return self._state.bound()

    def drive(self, optimizer: Any, data_loader: DataLoader[Any]) -> None:
        """Let the plan decide noise and learning rate of every ``optimizer.step()`` from now on.

        Args:
            optimizer: the ``DPOptimizer`` that ``PrivacyEngine.make_private`` returned; the noise
                multiplier that it was made with does not matter.
            data_loader: the ``DPDataLoader`` that came with it. It draws with probability m/n, or
                with 1/ceil(n/m), which is what Opacus makes of ``batch_size=m`` where m does not
                divide n: a smaller probability, which costs no more.
        """
        if self._optimizer is not None:
            raise InvalidValueError(
                "optimizer must be the only one of its schedule, which drives one already: a "
                "second run costs a second budget, and needs a NoiseSchedule of its own"
            )
        check_single_process("NoiseSchedule")
        check_optimizer(optimizer)
        sampler = sampler_of(data_loader)
        problem = other_settings(self.plan, optimizer) or other_rate(self.plan, sampler)
        if problem is not None:
            raise InvalidValueError(problem)
        self._optimizer, self._sampler = optimizer, sampler
        self._draws = Draws(sampler, fetches_ahead=data_loader.num_workers > 0)
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._trained = [*map(id, optimizer.params)]
        self._inner_pre_step = optimizer.pre_step
        optimizer.pre_step = self._pre_step
        original = optimizer.original_optimizer
        self._hooks = [
            original.register_step_pre_hook(self._begin),
            original.register_step_post_hook(self._end),
        ]
        self._set_noise()

    def close(self) -> None:
        """Let the optimizer go, with the noise multiplier that it has now and its own rates."""
        if self._optimizer is None:
            return
        self._draws.close()
        del self._optimizer.pre_step
        for hook in self._hooks:
            hook.remove()
        self._optimizer = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is on its plan, as JSON can hold it.

        Save it with the model, the optimizer and the accountant. There is no ledger here: steps
        that were taken after a state was saved are not known to whoever goes on from it.
        """
        return {"fingerprint": self.plan.fingerprint, **self._state.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same plan; what was taken already is never taken back."""
        if state.get("fingerprint") != self.plan.fingerprint:
            raise InvalidValueError(
                f"state must be one of the plan {self.plan.fingerprint[:16]}, got one of "
                f"{str(state.get('fingerprint'))[:16]}"
            )
        if len(state["spent"]) < self.steps:
            raise InvalidValueError(
                f"state must not be older than this run of {self.steps} steps, got one of "
                f"{len(state['spent'])}: what was released stays released"
            )
        self._state.load_state_dict(state)
        if self._optimizer is not None:
            self._set_noise()

    def _pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Stand before Opacus' own: check and count, then let it clip and add noise."""
        self._factor = None
        self._check()
        # Microbatches are clipped and summed only; the noise comes with the last one.
        is_microbatch = self._optimizer._check_skip_next_step(pop_next=False)
        problem = self._draws.look(is_microbatch=is_microbatch)
        if problem is not None:
            raise StepError(problem)
        if is_microbatch:
            return self._inner_pre_step(closure)
        self._draws.step()
        stepsize = float(self.plan.stepsizes[self.steps])
        self._state.spend()
        released = self._inner_pre_step(closure)
        self._factor = stepsize
        self._set_noise()
        return released

    def _check(self) -> None:
        """Raise if a step cannot be the plan's next, before anything is clipped or drawn."""
        if not self.remaining:
            raise StepError(
                f"the plan's {self.plan.steps} steps are all taken: stop when schedule.remaining "
                "is 0, or plan more steps"
            )
        planned, found = self._state.noise_multiplier, self._optimizer.noise_multiplier
        if found != planned:
            raise StepError(
                f"noise_multiplier was changed from the plan's {planned} to {found}: the plan has "
                "the noise of every step; leave Opacus' noise schedulers away"
            )
        problem = (
            other_settings(self.plan, self._optimizer)
            or other_rate(self.plan, self._sampler)
            or changed_rates(self._optimizer, self._rates)
            or changed_parameters(self._optimizer, self._trained)
            or several_batches(self._optimizer)
        )
        if problem is not None:
            raise StepError(problem)

    def _set_noise(self) -> None:
        """Put the next step's noise where Opacus and its accountants read it."""
        if self.remaining:
            self._optimizer.noise_multiplier = self._state.noise_multiplier

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._factor is None:
            raise StepError(
                "the inner optimizer was stepped without noise: call step() of the DPOptimizer "
                "that is driven"
            )
        for group, own in zip(optimizer.param_groups, self._rates, strict=True):
            _set_rate(group, own * self._factor)

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, own in zip(optimizer.param_groups, self._rates, strict=True):
            _set_rate(group, own)
        self._factor = None


def _set_rate(group: dict[str, Any], value: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value
