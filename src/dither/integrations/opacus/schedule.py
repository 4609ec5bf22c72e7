"""A schedule that makes an Opacus optimizer follow a plan."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dither import validate
from dither.integrations.opacus.accountant import check_one_batch
from dither.planning import Plan, ReactivePlan
from dither.planning.search import check_no_search
from dither.training import StepError
from dither.training.distributed import check_single_process
from dither.training.optimizer_hooks import set_learning_rate
from dither.types import PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError


@final
class NoiseSchedule:
    """Makes an Opacus optimizer follow a plan.

    Guarantees: as long as the optimizer is fed from the data loader that was given to `drive`, with
    every batch as it is drawn, all releases together cost at most ``plan.bound``. A step is counted
    before its noise is drawn. Microbatches of Opacus' ``BatchMemoryManager`` are one step, with one
    noise.

    These raise an error: a step beyond the plan, a clip norm, expected batch size, reduction or
    sampling rate other than the plan's, a noise multiplier that was changed elsewhere, several
    batches in one step, more steps than batches were drawn, a pass over the data loader that was
    left before the last microbatch of a batch, and optimizers or data loaders of another mechanism.

    Not detected: batches from elsewhere than that data loader, one batch used twice and another not
    at all, and a record that is in the dataset more than once. A learning-rate scheduler of torch
    multiplies the plan's step sizes.

    Args:
        plan: a `dither.Plan` with Poisson sampling and flat clipping.

    Example:
        >>> import dither
        >>> plan = dither.plan(
        ...     epsilon=2.0, delta=1e-5, dataset_size=2000, batch_size=100, steps=40)
        >>> NoiseSchedule(plan).remaining
        40
    """

    def __init__(self, plan: Plan) -> None:
        if isinstance(plan, ReactivePlan):
            raise InvalidTypeError(
                "plan must be a Plan, got a ReactivePlan: it needs every release before the step, "
                "which Opacus does not show; use dither.make_private"
            )
        validate.instance(Plan, plan=plan)
        check_no_search(plan)
        if plan.sampling == "cyclic":
            raise InvalidValueError(
                "plan must have independent noise, got noise that is correlated within "
                f"{plan.bands} steps, with cyclic sampling: Opacus has neither; use "
                "dither.make_private"
            )
        if plan.sampling != "poisson":
            raise InvalidValueError(
                f"plan must have sampling 'poisson', got {plan.sampling!r}: Opacus draws every "
                "record independently"
            )
        if plan.clipping != "flat":
            raise InvalidValueError(
                f"plan must have clipping 'flat', got {plan.clipping!r}: the DPOptimizer of Opacus "
                "shortens gradients that are longer than the clip norm, and no others"
            )
        if not plan.noise_multipliers.all():
            raise InvalidValueError("plan must have noise in every step, got one without")
        self.plan = plan
        self._state = plan.new_state()
        self._optimizer: Any = None
        self._opacus_pre_step: Callable[..., Any]
        self._sampler: Any = None
        self._driven_steps = 0
        self._stepsize: float | None = None
        self._learning_rates: list[float] = []

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._state.steps

    @property
    def remaining(self) -> int:
        """Number of steps of the plan that are left."""
        return self.plan.steps - self._state.steps

    def bound(self) -> PrivacyBound:
        """Return what the steps so far cost; after the last step, the plan's bound."""
        return self._state.bound()

    def drive(self, optimizer: Any, data_loader: DataLoader[Any]) -> None:
        """Set noise and learning rate of every ``optimizer.step()`` from now on.

        Args:
            optimizer: the ``DPOptimizer`` that ``PrivacyEngine.make_private`` returned; its own
                noise multiplier does not matter.
            data_loader: the ``DPDataLoader`` that came with it. It draws with probability m/n, or
                with 1/ceil(n/m), as Opacus does for ``batch_size=m`` where m does not divide n: a
                smaller probability, which costs no more.
        """
        check_single_process("NoiseSchedule")
        if type(optimizer) is not DPOptimizer:
            raise InvalidTypeError(
                "optimizer must be the DPOptimizer of make_private(clipping='flat', "
                f"grad_sample_mode='hooks'), got {type(optimizer).__name__}"
            )
        sampler = _sampler_of(data_loader)
        problem = self._mismatch(optimizer, sampler)
        if problem is not None:
            raise InvalidValueError(problem)
        if self._optimizer is not None or "pre_step" in vars(optimizer):
            raise InvalidValueError(
                "a schedule drives one optimizer, and an optimizer has one schedule: call "
                "make_private again for another run, which costs another budget"
            )
        # A data loader does not let its sampler be replaced, so that the sampler changes its class.
        sampler.__class__ = _CountingSampler
        sampler.drawn, sampler.schedule = 0, self
        self._optimizer, self._sampler = optimizer, sampler
        self._has_workers = data_loader.num_workers > 0
        self._opacus_pre_step, optimizer.pre_step = optimizer.pre_step, self._pre_step
        optimizer.original_optimizer.register_step_pre_hook(self._scale_learning_rates)
        optimizer.original_optimizer.register_step_post_hook(self._restore_learning_rates)
        self._set_noise()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run in its plan, as JSON can hold it.

        Save it with the model, the optimizer and the accountant. There is no ledger here: steps
        taken after a state was saved are not counted in a run that resumes from it.
        """
        return {"fingerprint": self.plan.fingerprint, **self._state.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same plan, which must not be older than this run."""
        if state.get("fingerprint") != self.plan.fingerprint:
            raise InvalidValueError(
                f"state must be one of the plan {self.plan.fingerprint[:16]}, got one of "
                f"{str(state.get('fingerprint'))[:16]}"
            )
        if len(state["spent"]) < self.steps:
            raise InvalidValueError(
                f"state must not be older than this run of {self.steps} steps, got one of "
                f"{len(state['spent'])}: steps that were released stay spent"
            )
        self._state.load_state_dict(state)
        if self._optimizer is not None:
            self._set_noise()

    def _pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Check and count a step, then let Opacus clip and add noise."""
        self._stepsize = None
        self._check_step()
        # Microbatches are clipped and summed only; the noise comes with the last one.
        if self._optimizer._check_skip_next_step(pop_next=False):
            return self._opacus_pre_step(closure)
        stepsize = float(self.plan.stepsizes[self.steps])
        self._driven_steps += 1
        self._state.spend()
        released = self._opacus_pre_step(closure)
        self._stepsize = stepsize
        self._set_noise()
        return released

    def _check_step(self) -> None:
        """Raise if a step cannot be the plan's next, before anything is clipped or drawn."""
        if not self.remaining:
            raise StepError(
                f"the plan's {self.plan.steps} steps are all taken: stop when schedule.remaining "
                "is 0, or plan more steps"
            )
        planned, current = self._state.noise_multiplier, self._optimizer.noise_multiplier
        if current != planned:
            raise StepError(
                f"noise_multiplier was changed from the plan's {planned} to {current}: the plan "
                "sets the noise of every step; remove Opacus' noise scheduler"
            )
        problem = self._mismatch(self._optimizer, self._sampler)
        if problem is not None:
            raise StepError(problem)
        check_one_batch(self._optimizer)
        microbatches = len(self._optimizer._step_skip_queue)  # those drawn and not yet stepped
        if microbatches > 1 or (microbatches and self._has_workers):
            raise StepError(
                "microbatches of two batches could be in one step: call optimizer.step() for every "
                "microbatch of the BatchMemoryManager, and use num_workers=0: workers draw ahead"
            )
        if self._sampler.drawn <= self._driven_steps:
            raise StepError(
                "a batch is for one step, and every batch drawn has had its step: take the next "
                "batch from the data loader"
            )

    def _mismatch(self, optimizer: Any, sampler: Any) -> str | None:
        """Return which setting of the optimizer or of the sampler is not the plan's.

        For ``batch_size=m`` Opacus draws with 1/ceil(n/m). That is at most q = m/n, and costs no
        more: drawing with q′ ≤ q is drawing with q, and then leaving the record out with
        probability 1 − q′/q; the divergences that make ε are convex in that mixture.
        """
        n, m, q = self.plan.dataset_size, self.plan.batch_size, sampler.sample_rate
        C = self.plan.clip_norm
        planned = {"max_grad_norm": C, "expected_batch_size": m, "loss_reduction": "mean"}
        for name, value in planned.items():
            current = getattr(optimizer, name)
            if current != value:
                return f"optimizer.{name} must be {value!r} as planned, got {current!r}"
        if q in (self.plan.sample_rate, 1 / -(-n // m)):
            return None
        return (
            f"data_loader must draw with the plan's probability {self.plan.sample_rate:.6g}, got "
            f"{q:.6g}: make it with batch_size={m} and drop_last=False of {n} records"
        )

    def _set_noise(self) -> None:
        """Set the next step's noise where Opacus and its accountants read it."""
        if self.remaining:
            self._optimizer.noise_multiplier = self._state.noise_multiplier

    def _scale_learning_rates(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepsize is None:
            raise StepError(
                "the inner optimizer was stepped without noise: call step() of the DPOptimizer "
                "that make_private returned"
            )
        if self._learning_rates:  # torch calls hooks again for the super().step() of a subclass
            return
        self._learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        for group, own in zip(optimizer.param_groups, self._learning_rates, strict=True):
            set_learning_rate(group, own * self._stepsize)
            for parameter in group["params"]:
                if not parameter.requires_grad:  # Opacus adds no noise to its gradient
                    parameter.grad = None

    def _restore_learning_rates(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, own in zip(optimizer.param_groups, self._learning_rates, strict=False):
            set_learning_rate(group, own)
        self._learning_rates, self._stepsize = [], None


class _CountingSampler(UniformWithReplacementSampler):
    """Opacus' Poisson sampler, which counts batches and starts between two batches only."""

    drawn: int
    schedule: NoiseSchedule

    def __iter__(self) -> Iterator[Any]:
        optimizer = self.schedule._optimizer
        is_inside_batch = optimizer._is_last_step_skipped or optimizer._step_skip_queue
        if self.schedule.remaining and is_inside_batch:
            raise StepError(
                "microbatches of two batches would be in one step: the last pass over the data "
                "loader was left in the middle; finish every pass of the BatchMemoryManager"
            )
        for batch in super().__iter__():
            self.drawn += 1
            yield batch


def _sampler_of(data_loader: object) -> Any:
    """Return the Poisson sampler of a data loader; raise if it has another."""
    sampler = getattr(data_loader, "batch_sampler", None)
    is_poisson = type(sampler) in (UniformWithReplacementSampler, _CountingSampler)
    if not isinstance(data_loader, DPDataLoader) or not is_poisson:
        raise InvalidTypeError(
            "data_loader must be the DPDataLoader of make_private(poisson_sampling=True) in one "
            f"process, got {type(data_loader).__name__} with {type(sampler).__name__}"
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", False):
        raise InvalidValueError(
            "data_loader must have rand_on_empty=False, got True: a random record instead of an "
            "empty batch lets one record change the sum by twice the clip norm"
        )
    return sampler
