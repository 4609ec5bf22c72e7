"""What is logged during a private fit."""

from typing import Any, final

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

from dither import validate


@final
class ReleasedResults(_ResultCollection):
    """The values that a trainer gives to loggers, progress bar and callbacks while it trains.

    What the module or a callback logs is dropped, with one warning per name: it comes from private
    records without noise. Validation has values of its own, which are not these.

    Args:
        shows_all: whether nothing is dropped.
    """

    def __init__(self, *, shows_all: bool) -> None:
        super().__init__(training=True)
        self._shows_all, self._dropped = shows_all, set[str]()

    def log(self, fx: str, name: str, *args: Any, **kwargs: Any) -> None:
        """Drop a value, unless all are shown."""
        if self._shows_all:
            super().log(fx, name, *args, **kwargs)
        elif name not in self._dropped:
            self._dropped.add(name)
            validate.warn(
                f"{name!r}, logged in {fx}, is not private and goes nowhere: measure on public "
                "records in validation_step, or show it with log_sensitive_training_values=True"
            )

    def log_released(self, **values: float) -> None:
        """Log values that were released or are public."""
        for name, value in values.items():
            super().log(
                "training_step", name, torch.tensor(value, dtype=torch.float64),
                prog_bar=True, on_step=True, on_epoch=False, batch_size=1,
            )  # fmt: skip
