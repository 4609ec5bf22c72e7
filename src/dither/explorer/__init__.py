"""A page on your own machine to plan by hand: sliders, curves, and the plan to take away.

`Explorer` answers on the loopback interface alone. What moves with a slider is an estimate
(`dither.explorer.preview`); what is saved, copied or called exact is the library's own plan.
"""

from dither.explorer.server import Explorer

__all__ = ["Explorer"]
