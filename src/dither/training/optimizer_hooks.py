"""Hooks on the optimizer: the plan sets the learning rate, and every step is a release.

Only the hooks that torch.optim offers are used; the optimizer is not wrapped or patched.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from dither.clipping.batch import trainable
from dither.training.errors import StepError
from dither.validate import InvalidTypeError, InvalidValueError

_SCHEDULED = (
    "optimizer must have no learning rate scheduler, got one: the plan owns the learning rate; "
    "give the schedule to dither.plan(stepsizes=dither.schedules.from_torch(make_scheduler)), "
    "where make_scheduler(optimizer) returns it, one value per step"
)
_BUSY = "_dither_is_private"


class OptimizerHooks:
    """Hooks that release a step before the optimizer takes it, at the plan's learning rate.

    ``after_step`` is called when the optimizer has taken a step, ``after_run`` by `remove`.

    Args:
        model: whose trainable parameters the optimizer must have, all of them and no others.
        optimizer: the optimizer, which may be wrapped by accelerate.
        release: writes the step's release into the gradients, and returns the factor of the
            learning rates.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, release: Callable[[], float]
    ) -> None:
        _check_kind(optimizer)
        self._optimizer = _unwrap(optimizer)
        self._model, self._release = model, release
        if _BUSY in self._optimizer.__dict__:
            raise InvalidValueError(
                "optimizer must not belong to another private run: call close() of that one, or "
                "make a new optimizer"
            )
        if has_scheduler(self._optimizer):
            raise InvalidValueError(_SCHEDULED)
        check_trainable(model)
        self._check_parameters(InvalidValueError)
        self.rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self.after_step: Callable[[], None] = lambda: None
        self.after_run: Callable[[], None] = lambda: None
        self._depth = 0  # torch calls the hooks again for the super().step() of a subclass
        self._optimizer.__dict__[_BUSY] = True
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before),
            self._optimizer.register_step_post_hook(self._after),
        ]

    def check(self) -> None:
        """Raise if the optimizer is not as planned."""
        groups = self._optimizer.param_groups
        if has_scheduler(self._optimizer):
            raise StepError(_SCHEDULED)
        self._check_parameters(StepError)
        if [float(group["lr"]) for group in groups] != self.rates:
            rates = ", ".join(f"{float(group['lr']):g}" for group in groups)
            then = ", ".join(f"{rate:g}" for rate in self.rates)
            raise StepError(
                f"the learning rate was changed from {then} to {rates}, but the plan owns it: give "
                "the schedule to dither.plan(stepsizes=...), and leave lr alone"
            )

    def begin_step(self) -> None:
        """Expect the release of a new batch, whatever became of the last step."""
        self._depth = 0

    def remove(self) -> None:
        """Remove the hooks."""
        self._optimizer.__dict__.pop(_BUSY, None)
        for hook in self._hooks:
            hook.remove()
        self.after_run()

    def _check_parameters(self, error: type[Exception]) -> None:
        """Raise unless the optimizer has all trainable parameters of the model, and no others."""
        named = dict(self._model.named_parameters())
        held = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        foreign = len(held - {*map(id, named.values())})
        if foreign:
            raise error(
                f"optimizer must have the model's parameters alone, got {foreign} besides: "
                "make the optimizer after the model is copied or changed (replace_batch_norm, "
                "deepcopy), with the parameters() of one module that holds all that is trained"
            )
        missing = [name for name, p in named.items() if p.requires_grad and id(p) not in held]
        if missing:
            raise error(
                "optimizer must have all trainable parameters of the model, got none for "
                f"{', '.join(missing[:5])}: add them, or freeze them with requires_grad_(False)"
            )

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(each is not None for each in (*args[1:], *kwargs.values())):
            raise StepError(
                "optimizer.step was called with a closure, which would compute gradients without "
                "noise: call private.backward(losses), then optimizer.step() without arguments"
            )
        if self._depth:
            self._depth += 1
            return
        self.check()
        factor = self._release()
        self._depth = 1
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            set_learning_rate(group, rate * factor)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            set_learning_rate(group, rate)
        self.after_step()


def check_trainable(model: nn.Module) -> None:
    """Raise if there is nothing to train."""
    if not trainable(model):
        raise InvalidValueError(
            "model must have trainable parameters, got none with requires_grad=True"
        )


def _unwrap(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes the steps: inside the one that accelerate prepares."""
    inner = getattr(optimizer, "optimizer", None)
    return _unwrap(inner) if isinstance(inner, Optimizer) else optimizer


def _check_kind(optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if getattr(optimizer, "scaler", None) is not None:
        raise InvalidValueError(
            "optimizer must step without a GradScaler, which changes gradients before they are "
            'clipped, got one: use bfloat16 (of accelerate, mixed_precision="bf16") or float32'
        )
    if isinstance(optimizer, LBFGS):
        raise InvalidValueError(
            "optimizer must take one step per release, got LBFGS, which evaluates the loss several "
            "times in a step; use SGD or Adam"
        )


def has_scheduler(optimizer: Optimizer) -> bool:
    """Return whether a scheduler has marked the groups of the optimizer."""
    return any("initial_lr" in group for group in optimizer.param_groups)


def set_learning_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of parameters, in place if it is a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
