"""Claim of the paper: with η_t = 1/√(20+t), ADP-SGD is mostly ahead of DP-SGD at the same budget.

CIFAR-10, batches of 256, δ = 1e-5, ε̄ = ε/16, clip norms C_G; the best iterate (measured every 200
steps; 20 in the paper) and the last. The gap is said to grow with T, with C_G, and as ε̄ falls.
"""

from experiments.reproduction.decay_table import DecayGrid, DecayTable

EXPERIMENT = DecayTable(
    name="table-inverse-sqrt",
    title="Step sizes η_t = 1/√(20+t): best and last iterate",
    schedule="inverse_sqrt",
    grids={
        "smoke": DecayGrid((0.8, 3.2), (2.5,), (2,)),
        "small": DecayGrid((0.8, 1.6, 3.2, 6.4), (1.0, 2.5, 5.0), (60, 120)),
        "full": DecayGrid((0.8, 1.2, 1.6, 3.2, 6.4), (0.5, 1.0, 2.5, 5.0), (60, 120, 200)),
    },
)
