"""Watches over an optimizer: the plan owns its learning rate, and its steps are the plan's.

Only the hooks that torch.optim offers are used; the optimizer is not wrapped or patched.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from dither.clipping.batch import trainable
from dither.clipping.recorder import Recorder
from dither.training.errors import StepError
from dither.validate import InvalidTypeError, InvalidValueError

_SCHEDULED = (
    "optimizer must have no learning rate scheduler, got one: the plan owns the learning rate; "
    "give the schedule to dither.plan(stepsizes=...)"
)


class Guard:
    """Holds an optimizer to its parameters and its learning rates.

    Args:
        model: whose trainable parameters the optimizer must have, all of them and no others.
        optimizer: the optimizer.
        before: called when a step begins; returns the factor of the learning rates.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        before: Callable[[], float],
    ) -> None:
        _refuse_unfit(model, optimizer)
        self.optimizer = optimizer
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._model, self._before = model, before
        self._held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.trainable = trainable(model)
        self._modules = [*model.modules()]
        self._state: list[tuple[Tensor, int]] = []
        self.accept_model()
        self._hooks = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
        ]

    def check(self) -> None:
        """Raise if anything was changed behind the plan's back."""
        groups = self.optimizer.param_groups
        if _has_scheduler(self.optimizer):
            raise StepError(_SCHEDULED)
        if [float(group["lr"]) for group in groups] != self.rates:
            rates = ", ".join(f"{float(group['lr']):g}" for group in groups)
            then = ", ".join(f"{rate:g}" for rate in self.rates)
            raise StepError(
                f"the learning rate was changed from {then} to {rates}, but the plan owns it: give "
                "the schedule to dither.plan(stepsizes=...), and leave lr alone"
            )
        now = trainable(self._model)
        if [*map(id, now.values())] != [*map(id, self.trainable.values())]:
            raise StepError(
                "the model's trainable parameters have changed since make_private: freeze and "
                "unfreeze before it, or call make_private again with a plan for what is left"
            )
        if {id(p) for group in groups for p in group["params"]} != self._held:
            raise StepError(
                "the optimizer's parameters have changed since make_private: add all of them before"
            )

    def accept_model(self) -> None:
        """Take the model's parameters and buffers as they are now."""
        self._state = [(tensor, tensor._version) for tensor in self._tensors()]

    def refuse_changed_model(self) -> None:
        """Raise if parameters or buffers were changed by anyone but the optimizer."""
        now = [(tensor, tensor._version) for tensor in self._tensors()]
        if len(now) != len(self._state) or any(
            one is not two or version != before
            for (one, version), (two, before) in zip(now, self._state, strict=True)
        ):
            raise StepError(
                "the model's parameters or buffers were changed, and not by the optimizer: what "
                "comes from records would be in the model without noise; if it comes from public "
                "or released values alone, call private.accept_model()"
            )

    def refuse_kept_records(self, recorder: Recorder) -> None:
        """Raise if a forward pass has put something of its records into a buffer; it is wiped."""
        for tensor, before in zip(self._tensors(), self._state, strict=True):
            changed = tensor is not before[0] or tensor._version != before[1]
            if changed and (recorder.comes_from_batch(tensor) or recorder.tells_values):
                with torch.no_grad():
                    tensor.zero_()
                raise StepError(
                    "model must keep nothing of its records, but its forward pass has written "
                    f"what comes from them to a buffer of shape {tuple(tensor.shape)}, which was "
                    "set to zero"
                )

    def _tensors(self) -> list[Tensor]:
        return [
            tensor
            for module in self._modules
            for held in (module._parameters, module._buffers)
            for tensor in held.values()
            if tensor is not None
        ]

    def remove(self) -> None:
        """Let the optimizer go."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(each is not None for each in (*args[1:], *kwargs.values())):
            raise StepError(
                "optimizer.step was called with a closure, which would compute gradients without "
                "noise: call private.backward(losses), then optimizer.step() without arguments"
            )
        self.check()
        self.refuse_changed_model()
        factor = self._before()
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            _set_rate(group, rate * factor)

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            _set_rate(group, rate)
        self.accept_model()


def refuse_frozen(model: nn.Module) -> None:
    """Raise if there is nothing to train."""
    if not trainable(model):
        raise InvalidValueError(
            "model must have trainable parameters, got none with requires_grad=True"
        )


def _refuse_unfit(model: nn.Module, optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if isinstance(optimizer, LBFGS):
        raise InvalidValueError(
            "optimizer must take one step a release, got LBFGS, which evaluates the loss several "
            "times a step; use SGD or Adam"
        )
    if _has_scheduler(optimizer):
        raise InvalidValueError(_SCHEDULED)
    hooks = optimizer._optimizer_step_pre_hooks.values()
    if any(isinstance(getattr(hook, "__self__", None), Guard) for hook in hooks):
        raise InvalidValueError(
            "optimizer must not belong to another private run: call close() of that one first"
        )
    refuse_frozen(model)
    _refuse_other_parameters(model, optimizer)


def _refuse_other_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strange = len(held - {*names})
    if strange:
        raise InvalidValueError(
            f"optimizer must have the model's parameters alone, got {strange} that are not: make "
            "it with model.parameters() of the same model"
        )
    left_out = [name for name, p in trainable(model).items() if id(p) not in held]
    if left_out:
        raise InvalidValueError(
            f"optimizer must have all trainable parameters of the model, got none for "
            f"{', '.join(left_out[:5])}: add them, or freeze them with requires_grad_(False)"
        )


def _has_scheduler(optimizer: Optimizer) -> bool:
    """Schedulers mark the groups, and wrap the optimizer's step."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched") or any(
        "initial_lr" in group for group in optimizer.param_groups
    )


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
