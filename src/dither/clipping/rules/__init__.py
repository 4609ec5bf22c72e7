"""Rules: what the gradients of a layer's parameters are made of. Importing this registers them.

To add a rule for a function or a class of layers:

1. Write ``rule(call, gradient)`` in the file of its kind here, decorated by ``@register(kind)``. It
   gets the :class:`~dither.clipping.rules.registry.Call` with its inputs and the gradient of the
   output, records first, and returns pairs of a parameter and its contribution: ``PerRecord``,
   ``Outer`` or ``Lookup`` (`dither.clipping.contributions`). Raise ``UnsupportedCallError`` for
   a call that the rule does not cover: its parameters are then computed record by record.
2. Import a new file below.
3. Compare it with the reference in ``tests/clipping/test_rules.py``. At run time what a rule
   returns is compared with plain autograd when it is first used.
"""

from dither.clipping.rules import convolution, einsum, elementwise, embedding, linear, norms

__all__ = ["convolution", "einsum", "elementwise", "embedding", "linear", "norms"]
