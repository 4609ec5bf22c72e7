"""Claim of the paper: with η_t = 0.1 − α_T·√t, ADP-SGD is mostly ahead of DP-SGD.

α_T makes the step size fall to 1e-10 at step T. CIFAR-10, batches of 256, δ = 1e-5, ε̄ = ε/16, clip
norms C_G; the best iterate (measured every 200 steps; 20 in the paper) and the last.
"""

from experiments.reproduction.decay_table import DecayGrid, DecayTable

EXPERIMENT = DecayTable(
    name="table-decay-to-zero",
    title="Step sizes η_t = 0.1 − α_T·√t: best and last iterate",
    schedule="sqrt_to_zero",
    grids={
        "smoke": DecayGrid((0.8, 3.2), (2.5,), (2,)),
        "small": DecayGrid((0.8, 1.6, 3.2, 6.4), (1.0, 2.5), (60, 120)),
        "full": DecayGrid((0.8, 1.2, 1.6, 3.2, 6.4), (0.5, 1.0, 2.5), (60, 120, 200)),
    },
)
