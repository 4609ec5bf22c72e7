"""Integrations with other libraries: dither's plans and accounting in their training loops.

- `dither.integrations.opacus`: a plan sets the noise of an Opacus optimizer, and an accountant of
  dither composes its history. Needs the extra ``opacus``.
- `dither.integrations.lightning`: private training of a ``LightningModule`` by ``Trainer.fit``.
  Needs the extra ``lightning``.
- `dither.integrations.transformers`: private fine-tuning of models of ``transformers``, in full or
  by adapters of ``peft``, with its ``Trainer`` or without. Needs the extra ``transformers``.

What ``accelerate`` prepares goes into `dither.make_private` as it is. Import each by its own name,
so that a library that is not used need not be installed.
"""
