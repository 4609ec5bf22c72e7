"""Private training of a ``LightningModule`` by ``Trainer.fit`` of `lightning`.

`PrivateStrategy` is given to the trainer. ``training_step`` returns one loss per record.
"""

from dither.integrations.lightning.strategy import PrivateStrategy

__all__ = ["PrivateStrategy"]
