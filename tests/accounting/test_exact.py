"""Where there is a closed form: full batches, and single sampled steps, at 50 digits."""

import math

import mpmath
import numpy as np
import pytest
from tests.accounting.references import gaussian_delta, hockey_stick, integral

from dither import accounting

FULL_MUS = [1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 3.0, 10.0, 30.0]
DELTAS = [1e-12, 1e-8, 1e-5, 1e-3]


def full_batch(mu: float, sampling: str) -> tuple[np.ndarray, mpmath.mpf]:
    """Three unequal steps that together are about one Gaussian mechanism with μ; and μ exactly."""
    shift = 2.0 if sampling == "fixed" else 1.0
    z = shift / (mu * np.sqrt([0.5, 0.3, 0.2]))
    return z, mpmath.sqrt(mpmath.fsum((shift / mpmath.mpf(float(x))) ** 2 for x in z))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("mu", FULL_MUS)
def test_epsilon_of_full_batches(mu: float, delta: float, sampling: str) -> None:
    with mpmath.workdps(50):
        z, exact = full_batch(mu, sampling)
        bound = accounting.epsilon(z, sample_rate=1.0, delta=delta, sampling=sampling)
        assert bound.sampling == "full"
        assert bound.lower is not None
        at = mpmath.mpf(bound.epsilon)
        assert gaussian_delta(exact, at) <= delta
        if at > 0:
            assert gaussian_delta(exact, at * (1 - mpmath.mpf("1e-9"))) > delta
            assert gaussian_delta(exact, mpmath.mpf(bound.lower)) >= delta
            assert bound.lower >= bound.epsilon * (1.0 - 1e-9)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0, 1.5])
@pytest.mark.parametrize("mu", FULL_MUS)
def test_delta_of_full_batches(mu: float, share: float) -> None:
    with mpmath.workdps(50):
        z, exact = full_batch(mu, "poisson")
        epsilon = share * accounting.epsilon(z, sample_rate=1.0, delta=1e-10).epsilon
        claimed = accounting.delta(z, sample_rate=1.0, epsilon=epsilon).delta
        truth = gaussian_delta(exact, mpmath.mpf(epsilon))
        assert truth <= claimed <= truth * (1 + mpmath.mpf("1e-9"))


def test_the_closed_form_rejects_a_mu_that_is_a_billionth_off() -> None:
    """So 1e-9 is what the two tests above can see."""
    with mpmath.workdps(50):
        epsilon = accounting.epsilon([1.0], sample_rate=1.0, delta=1e-5).epsilon
        wrong = mpmath.mpf(1) + mpmath.mpf("2e-9")
        assert gaussian_delta(wrong, mpmath.mpf(epsilon)) > 1e-5


def worst(mu: mpmath.mpf, q: mpmath.mpf, epsilon: mpmath.mpf, sampling: str) -> mpmath.mpf:
    kinds = ("fixed",) if sampling == "fixed" else ("poisson-remove", "poisson-add")
    return max(hockey_stick(mu, q, mpmath.exp(epsilon), kind) for kind in kinds)


def random_single(seed: int) -> tuple[float, float, float, str]:
    random = np.random.default_rng([seed, 3])
    z = float(np.exp(random.uniform(math.log(0.05), math.log(1e4))))
    q = float(np.exp(random.uniform(math.log(1e-6), math.log(0.999))))
    delta = float(10.0 ** random.uniform(-12, -3))
    return z, q, delta, ("poisson", "fixed")[seed % 2]


@pytest.mark.parametrize("seed", range(120))
def test_single_steps(seed: int) -> None:
    z, q, delta, sampling = random_single(seed)
    with mpmath.workdps(50):
        mu = mpmath.mpf(2.0 if sampling == "fixed" else 1.0) / mpmath.mpf(z)
        rate = mpmath.mpf(q)
        bound = accounting.epsilon([z], sample_rate=q, delta=delta, sampling=sampling)
        at = mpmath.mpf(bound.epsilon)
        assert worst(mu, rate, at, sampling) <= delta
        if at > 0:
            assert worst(mu, rate, at * (1 - mpmath.mpf("1e-9")), sampling) > delta
            assert bound.lower is not None
            assert worst(mu, rate, mpmath.mpf(bound.lower), sampling) >= delta
        for epsilon in (0.0, 0.5 * bound.epsilon, bound.epsilon):
            truth = worst(mu, rate, mpmath.mpf(epsilon), sampling)
            claimed = accounting.delta([z], sample_rate=q, epsilon=epsilon, sampling=sampling).delta
            assert truth <= claimed <= truth * (1 + mpmath.mpf("1e-9"))


@pytest.mark.parametrize("removing", [True, False])
@pytest.mark.parametrize(
    ("mu", "q", "epsilon"), [(1.0, 0.1, 0.05), (0.4, 0.6, 0.2), (3.0, 0.01, 0.0)]
)
def test_the_reference_is_the_mean_excess_of_the_loss(
    mu: float, q: float, epsilon: float, removing: bool
) -> None:
    """E[(1 − e^(ε−L))₊] by quadrature, L the loss of adding or removing a record."""
    with mpmath.workdps(30):
        m, rate, e = mpmath.mpf(mu), mpmath.mpf(q), mpmath.mpf(epsilon)

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            mixed = (1 - rate) * mpmath.npdf(x) + rate * mpmath.npdf(x - m)
            loss = mpmath.log(mixed / mpmath.npdf(x)) * (1 if removing else -1)
            law = mixed if removing else mpmath.npdf(x)
            return law * max(mpmath.mpf(0), -mpmath.expm1(e - loss))

        edge = mpmath.log((mpmath.exp(e if removing else -e) - 1 + rate) / rate) / m + m / 2
        low, high = (float(edge), 20.0) if removing else (-20.0, float(edge))
        truth = integral(excess, low, high, 0.5)
        kind = "poisson-remove" if removing else "poisson-add"
        assert abs(hockey_stick(m, rate, mpmath.exp(e), kind) - truth) <= 1e-15 * truth


def test_one_step_goes_on_where_two_begin() -> None:
    """A second step that is next to nothing changes next to nothing: both paths meet."""
    for q, z, delta in ((0.1, 0.8, 1e-6), (0.01, 1.5, 1e-5), (0.5, 3.0, 1e-8)):
        for sampling in ("poisson", "fixed"):
            one = accounting.epsilon([z], sample_rate=q, delta=delta, sampling=sampling)
            two = accounting.epsilon([z, 1e6], sample_rate=q, delta=delta, sampling=sampling)
            assert two.lower is not None
            assert two.lower * (1.0 - 1e-3) <= one.epsilon <= two.epsilon


@pytest.mark.parametrize(
    ("z", "q", "delta"), [(0.0237, 1e-6, 5e-7), (0.02, 1e-3, 1e-4), (0.02, 0.9, 1e-9)]
)
def test_single_steps_whose_loss_is_hundreds_of_nats(z: float, q: float, delta: float) -> None:
    """e^ε overflows here, and e^ε/q before it."""
    with mpmath.workdps(50):
        mu, rate = 1 / mpmath.mpf(z), mpmath.mpf(q)
        bound = accounting.epsilon([z], sample_rate=q, delta=delta)
        at = mpmath.mpf(bound.epsilon)
        assert at > 690
        assert worst(mu, rate, at, "poisson") <= delta
        assert worst(mu, rate, at * (1 - mpmath.mpf("1e-9")), "poisson") > delta
        for epsilon in (690.0, 698.0, 701.0, 720.0):
            truth = worst(mu, rate, mpmath.mpf(epsilon), "poisson")
            claimed = accounting.delta([z], sample_rate=q, epsilon=epsilon).delta
            assert truth <= claimed <= truth * (1 + mpmath.mpf("1e-9"))


@pytest.mark.parametrize("delta", [0.3, 0.499, 0.5, 0.505, 0.9])
@pytest.mark.parametrize("mu", [0.3, 20.0, 60.0])
def test_full_batches_at_a_large_delta(mu: float, delta: float) -> None:
    with mpmath.workdps(50):
        z, exact = full_batch(mu, "poisson")
        bound = accounting.epsilon(z, sample_rate=1.0, delta=delta)
        assert bound.lower is not None
        assert gaussian_delta(exact, mpmath.mpf(bound.epsilon)) <= delta
        if bound.epsilon > 0.0:
            assert gaussian_delta(exact, mpmath.mpf(bound.lower)) >= delta
            assert bound.lower >= bound.epsilon * (1.0 - 1e-9)


@pytest.mark.parametrize(("z", "q"), [([10.0], 1.0), ([10.0], 0.5), ([10.0, 10.0], 1.0)])
def test_noise_never_gives_a_delta_of_zero(z: list[float], q: float) -> None:
    assert accounting.delta(z, sample_rate=q, epsilon=100.0).delta > 0.0
