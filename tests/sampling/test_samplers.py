"""What every sampler promises, and the sampler that a plan asks for."""

import copy
import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from tests.tracing import traced_lines

import dither
from dither import Plan
from dither.randomness import Source
from dither.sampling import Fixed, FullBatch, Poisson, Sampler, sampler_for
from dither.schedules import AdaGradNorm

SAMPLERS: list[Sampler] = [
    Poisson(0.3),
    Poisson(1.0 / 256.0),
    Poisson(1e-9),
    Poisson(1.0 - 2.0**-30),
    Poisson(1.0),
    Fixed(1),
    Fixed(9),
    Fixed(40),
    FullBatch(),
]
each = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)


@each
@pytest.mark.parametrize("length", [40, 41, 1000])
def test_indices_ascend_and_none_comes_twice(sampler: Sampler, length: int) -> None:
    for step in range(30):
        drawn = sampler.draw(length, Source(1).stream("sampling", step))
        assert drawn.dtype == np.int64
        assert drawn.ndim == 1
        assert (np.diff(drawn) > 0).all()
        assert ((drawn >= 0) & (drawn < length)).all()


@each
def test_a_seeded_stream_draws_the_same_again(sampler: Sampler) -> None:
    for step in range(5):
        first, again = (sampler.draw(500, Source(8).stream("sampling", step)) for _ in range(2))
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("sampler", [Poisson(0.3), Fixed(9), Fixed(490)], ids=repr)
def test_other_steps_seeds_and_purposes_draw_others(sampler: Sampler) -> None:
    streams = [
        Source(8).stream("sampling", 0),
        Source(8).stream("sampling", 1),
        Source(9).stream("sampling", 0),
        Source(8).stream("other", 0),
        Source().stream("sampling", 0),
        Source().stream("sampling", 0),
    ]
    assert len({sampler.draw(500, stream).tobytes() for stream in streams}) == len(streams)


@each
def test_is_a_value(sampler: Sampler) -> None:
    assert isinstance(sampler, Sampler)
    assert eval(repr(sampler), vars(dither.sampling)) == sampler  # noqa: S307 - our own repr
    assert pickle.loads(pickle.dumps(sampler)) == sampler  # noqa: S301 - our own bytes
    assert copy.deepcopy(sampler) == sampler
    assert hash(copy.deepcopy(sampler)) == hash(sampler)
    assert [sampler == other for other in SAMPLERS].count(True) == 1
    for name in ("sample_rate", "batch_size", "other"):
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(sampler, name, 1)


# Samplers that draw again what came twice do so a few times more with more records.
@pytest.mark.parametrize(
    "sampler", [Poisson(0.3), Poisson(1e-9), Poisson(1.0), FullBatch(), Fixed(1)], ids=repr
)
def test_a_million_records_take_no_more_python_than_a_thousand(sampler: Sampler) -> None:
    def lines(length: int) -> int:
        return traced_lines(lambda: sampler.draw(length, Source(1).stream("sampling", 0)))

    lines(10)
    # A byte a record and a word for one record in 256, in pieces of 64 KiB, each in three lines.
    pieces = 10**6 * (1.0 + 8.0 / 256.0) / 2**16 + 2
    assert lines(10**6) <= lines(10**3) + 3 * pieces


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.6, 0.99])
def test_fixed_batches_do_not_loop_over_records(share: float) -> None:
    """What came twice is drawn again, in rounds: as many as it takes, but not one a record."""

    def lines(length: int) -> int:
        sampler = Fixed(int(share * length))
        return traced_lines(lambda: sampler.draw(length, Source(1).stream("sampling", 0)))

    lines(1_000)
    # A round leaves at most half of what is missing, and takes about as many lines as the first.
    one = lines(100)
    assert lines(100_000) < one * math.log2(100_000)


def made(**change: Any) -> Plan:
    setting: dict[str, Any] = {"steps": 1, "dataset_size": 100, "batch_size": 10, **change}
    return Plan.unsafe_without_noise(**setting)


def test_a_poisson_plan_draws_from_any_number_of_records() -> None:
    for length in (1, 97, 100, 1000):
        assert sampler_for(made(), length=length) == Poisson(0.1)


def test_a_fixed_plan_draws_from_as_many_records_as_it_says() -> None:
    assert sampler_for(made(sampling="fixed"), length=100) == Fixed(10)
    for length in (1, 99, 101):
        with pytest.raises(ValueError, match=f"dataset_size, 100 records, .* got {length}$"):
            sampler_for(made(sampling="fixed"), length=length)


def test_a_rate_of_one_takes_all() -> None:
    for sampling in ("poisson", "fixed"):
        assert sampler_for(made(batch_size=100, sampling=sampling), length=100) == FullBatch()
    assert sampler_for(made(batch_size=100), length=93) == FullBatch()
    with pytest.raises(ValueError, match="dataset_size"):
        sampler_for(made(batch_size=100, sampling="fixed"), length=93)


@pytest.mark.parametrize(("sampling", "sampler"), [("poisson", Poisson(0.1)), ("fixed", Fixed(10))])
def test_a_plan_that_reacts_has_its_sampler_too(sampling: str, sampler: Sampler) -> None:
    plan = dither.plan(
        epsilon=5.0,
        delta=1e-3,
        dataset_size=100,
        batch_size=10,
        steps=3,
        stepsizes=AdaGradNorm(1.0, 0.1),
        noise="uniform",
        sampling=sampling,
    )
    assert sampler_for(plan, length=100) == sampler


@pytest.mark.parametrize("length", [0, -1, 1.5, "ten", True])
def test_a_length_is_a_whole_number(length: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="length must be an integer of at least"):
        sampler_for(made(), length=length)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, float("nan"), float("inf")])
def test_a_rate_is_above_zero_and_at_most_one(rate: float) -> None:
    with pytest.raises(ValueError, match="sample_rate must be above 0 and at most 1, got"):
        Poisson(rate)


@pytest.mark.parametrize("size", [0, -3, 2.5, float("nan")])
def test_a_batch_size_is_a_whole_number(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got"):
        Fixed(size)


def test_numbers_of_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="sample_rate must be a number in"):
        Poisson("0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        Fixed(True)


def test_all_records_are_all_records() -> None:
    for sampler in (FullBatch(), Poisson(1.0), Fixed(7)):
        for step in range(10):
            drawn = sampler.draw(7, Source(1).stream("sampling", step))
            assert drawn.tolist() == [0, 1, 2, 3, 4, 5, 6]
