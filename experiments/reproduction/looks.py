"""Colours that are distinct for the colour-blind, and a line style for each."""

from typing import Any

CIFAR = "CIFAR-10 (JPEG)"
"""As every figure calls it: the images of the records are re-encoded, which costs accuracy."""
NOISE_LOOKS = {
    "uniform": {"color": "#E69F00", "linestyle": "--", "marker": "s"},
    "matched": {"color": "#D55E00", "linestyle": ":", "marker": "^"},
    "optimal": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
}
NOISE_NAMES = {
    "uniform": "uniform (DP-SGD)",
    "matched": "matched (the paper's ADP-SGD)",
    "optimal": "optimal (ours)",
}
ACCOUNTING_NAMES = {
    "theorem": "σ from the paper's theorem (equal ε̄, not equal ε)",
    "real": "all calibrated to the ε that its uniform noise really costs",
    "claimed": "all calibrated to the theorem's nominal ε",
}


def line_of(noise: str) -> dict[str, Any]:
    """Return colour and line style of a noise."""
    look = NOISE_LOOKS[noise]
    return {"color": look["color"], "linestyle": look["linestyle"]}
