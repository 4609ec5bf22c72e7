"""What a model makes of records before any loss is known: an objective for comparing calls."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dither.clipping.check import probe
from dither.training.tape import refuse_strange_output


class OutputsAlone:
    """What the model does, without a loss."""

    key = None
    sizes_vary = True

    def values(self, called: Callable[..., Any], batch: Any, records: int) -> Tensor:
        """Return a number a record that changes with its outputs."""
        (args, kwargs), _ = batch
        output = called(*args, **kwargs)
        refuse_strange_output(output)
        return probe(output, None)

    def loss_of_one(self, called: Callable[..., Any], batch: Any) -> Tensor:
        """Return that of a record alone."""
        return self.values(called, batch, 1)[0]
