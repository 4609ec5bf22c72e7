"""Bridges to other libraries: plans and accounting of dither where their loops train.

- `dither.integrations.opacus`: a plan drives the noise of an Opacus optimizer, and an accountant
  of ours prices its history. Needs the extra ``opacus``.
- `dither.integrations.transformers`: private fine-tuning of models of ``transformers``, whole or by
  adapters of ``peft``. Needs the extra ``transformers``.

Each is imported by its own name, so that a library that is not used need not be installed.
"""
