"""The paper's statements as functions, with its corrections.

Each docstring has the statement, its conditions, its place in the paper ("Adaptive Differentially
Private Empirical Risk Minimization"), and what is corrected here.

============================================  ====================================================
lemma 2.1 (Gaussian mechanism)                `gaussian_mechanism`
lemma 2.2 (extended advanced composition)     `extended_advanced_composition`
lemma A.1 (amplification by sampling)         `amplification_by_sampling`
lemma A.2 (advanced composition)              `advanced_composition`
theorems 4.1, A.1, C.1 (privacy)              `adp_sigma`, `adp_epsilon`, `adp_condition`,
                                              `adp_spent`, `b_delta`
theorems 4.2, C.2 (convergence)               `utility_bound`, `noise_cost`, `improvement`
propositions 5.1, D.1 (decaying step sizes)   `decaying_bounds`
theorem D.1 (reactive step sizes)             `adaptive_utility_bound`
propositions 5.2, D.2 (the same, ADP and DP)  `adaptive_bounds`
proposition A.1 (constant step size)          `constant_bound`, `best_steps`
lemma E.2 (sums of powers)                    `power_sum_bounds`
lemma E.3 (logarithmic sum)                   `logarithmic_sum_bound`
============================================  ====================================================

Lemma E.1, the descent lemma, is the first line of the convergence proofs and has nothing to
compute. The theorem's noise is far from tight: it is here to reproduce and to compare, not to
calibrate a run with.
"""

from dither.theory.composition import (
    advanced_composition,
    amplification_by_sampling,
    extended_advanced_composition,
    gaussian_mechanism,
)
from dither.theory.corollaries import (
    adaptive_bounds,
    adaptive_utility_bound,
    best_steps,
    constant_bound,
    decaying_bounds,
    logarithmic_sum_bound,
    power_sum_bounds,
)
from dither.theory.privacy import (
    TheoremCondition,
    adp_condition,
    adp_epsilon,
    adp_sigma,
    adp_spent,
    b_delta,
)
from dither.theory.utility import (
    AdpAndDp,
    Problem,
    UtilityBound,
    improvement,
    noise_cost,
    utility_bound,
)

__all__ = [
    "AdpAndDp",
    "Problem",
    "TheoremCondition",
    "UtilityBound",
    "adaptive_bounds",
    "adaptive_utility_bound",
    "adp_condition",
    "adp_epsilon",
    "adp_sigma",
    "adp_spent",
    "advanced_composition",
    "amplification_by_sampling",
    "b_delta",
    "best_steps",
    "constant_bound",
    "decaying_bounds",
    "extended_advanced_composition",
    "gaussian_mechanism",
    "improvement",
    "logarithmic_sum_bound",
    "noise_cost",
    "power_sum_bounds",
    "utility_bound",
]
