"""A local page to plan interactively: sliders, curves, and the plan to save.

`Explorer` listens on the loopback interface. While a slider moves the page shows an estimate
(`dither.explorer.preview`); what is saved, copied or called exact is the library's own plan.
"""

from dither.explorer.server import Explorer

__all__ = ["Explorer"]
