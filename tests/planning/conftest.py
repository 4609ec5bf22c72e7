import pytest
from tests.planning.reactive_runs import GROWTH, RULE, SETTING, SHORT

import dither
from dither.planning import ReactivePlan
from dither.schedules import UnsafeRawAdaGradNorm


@pytest.fixture(scope="module")
def fixed() -> ReactivePlan:
    return dither.plan(stepsizes=RULE, noise=GROWTH, **SHORT)


@pytest.fixture(scope="module", params=["poisson", "fixed"])
def following(request: pytest.FixtureRequest) -> ReactivePlan:
    return dither.plan(stepsizes=RULE, noise="filter", sampling=request.param, **SETTING)


@pytest.fixture(scope="module")
def unsafe() -> ReactivePlan:
    rule = UnsafeRawAdaGradNorm(b0_squared=20.0, nu=1e-3)
    return dither.plan(stepsizes=rule, noise=GROWTH, **SHORT)
