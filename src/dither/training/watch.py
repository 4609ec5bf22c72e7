"""Hooks on a model that note what it does to a batch, and are gone in its copies."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias
from weakref import WeakMethod, ref

import torch
from torch import nn

from dither.clipping.engine import Recording
from dither.clipping.recorder import watching

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]


class Watch:
    """Two hooks on the root of a model.

    They hold their listener weakly, and a copy or a pickle of the model has hooks that do nothing.

    Args:
        model: the model.
        begins: a method that hears what the model is called with, and returns where to note it and
            what to call it with, or None to let the call pass.
        ends: a method that hears the same and the output, and returns what the caller gets.
    """

    def __init__(
        self,
        model: nn.Module,
        begins: Callable[[Args, Kwargs], tuple[Recording, Args, Kwargs] | None],
        ends: Callable[[Args, Kwargs, Any], Any],
    ) -> None:
        self._model, self._begins, self._ends = ref(model), WeakMethod(begins), WeakMethod(ends)
        self._watching: ExitStack | None = None
        self._given: tuple[Args, Kwargs] = (), {}
        self._handles = [
            model.register_forward_pre_hook(_Hook(self._before), with_kwargs=True),
            model.register_forward_hook(_Hook(self._after), with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        begins = self._begins()
        if begins is None or model is not self._model() or not torch.is_grad_enabled():
            return None
        begun = begins(args, kwargs)
        if begun is None:
            return None
        self._given = args, kwargs
        recording, args, kwargs = begun
        recording.recorder.follow((args, kwargs))
        self._watching = ExitStack()
        self._watching.enter_context(watching(model, recording.recorder))
        return args, kwargs

    def _after(self, model: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
        if self._watching is None or model is not self._model():
            return None
        self._watching.close()
        given, ends = self._given, self._ends()
        self._watching, self._given = None, ((), {})
        return None if ends is None or output is None else ends(*given, output)


class _Hook:
    """A function that a copy of the model does not take along."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function

    def __call__(self, *call: Any) -> Any:
        """Call the function, if it is still there."""
        return None if self._function is None else self._function(*call)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()
