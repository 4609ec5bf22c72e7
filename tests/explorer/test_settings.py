from typing import Any

import pytest
from tests.explorer.fields import texts

import dither
from dither.explorer import settings

CASES = [
    {
        "epsilon": "0.7",
        "clip_norm": "0.5",
        "noise": "uniform",
        "sampling": "fixed",
        "batch_size": "60000",
    },
    {"schedule": "step", "noise": "matched", "epochs": "1.5", "batch_size": "6000"},
    {"schedule": "polynomial", "delta": "1e-6", "batch_size": "60000", "epochs": "7"},
]


@pytest.mark.parametrize("changed", CASES)
def test_the_code_makes_the_same_plan(changed: dict[str, str]) -> None:
    found = settings.read(texts(**changed))
    planned = dither.plan(**found.arguments())
    names: dict[str, Any] = {}
    exec(found.python(), names)  # noqa: S102 (this is what is tested)
    assert names["plan"].fingerprint == planned.fingerprint


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("epsilon", "0", "epsilon must be a positive, finite number, got 0"),
        ("epsilon", "much", "epsilon must be a positive, finite number, got 'much'"),
        ("epsilon", "", "epsilon must be a positive, finite number, got ''"),
        ("delta", "1", "delta must be strictly between 0 and 1, got 1"),
        ("delta", "nan", "delta must be strictly between 0 and 1, got nan"),
        ("dataset_size", "1000.5", "dataset_size must be an integer of at least 1"),
        ("batch_size", "60001", "batch_size must be at most dataset_size = 60000, got 60001"),
        ("epochs", "1e9", "epochs must make at most 200,000 steps"),
        ("epochs", "1e40", "epochs must make at most 200,000 steps"),
        ("clip_norm", "-1", "clip_norm must be a positive, finite number, got -1"),
        ("noise", "cosine", "noise must be one of"),
        ("sampling", "shuffle", "sampling must be one of fixed, poisson, got 'shuffle'"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(field: str, text: str, message: str) -> None:
    with pytest.raises(settings.FieldsError) as problem:
        settings.read(texts(**{field: text}))
    assert [*problem.value.problems] == [field]
    assert message in problem.value.problems[field]


def test_parameters_of_schedules_have_fields_of_their_own() -> None:
    for start, message in (("0", "start must be a positive"), ("x", "start must be a finite")):
        with pytest.raises(settings.FieldsError) as problem:
            settings.read({**texts(), "parameters": {"start": start, "end": "0.1"}})
        assert [*problem.value.problems] == ["parameters.start"]
        assert message in problem.value.problems["parameters.start"]
    with pytest.raises(settings.FieldsError) as problem:
        settings.read({**texts(schedule="exponential"), "parameters": {"start": "1", "rate": "0"}})
    assert [*problem.value.problems] == ["parameters.rate"]
    vanishing = {"start": "1", "rate": "1e-30"}
    with pytest.raises(settings.FieldsError) as problem:
        settings.read({**texts(schedule="exponential"), "parameters": vanishing})
    assert "stepsizes[" in problem.value.problems["schedule"]


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(settings.FieldsError) as problem:
        settings.read(texts(epsilon="-1", delta="2", noise=""))
    assert {*problem.value.problems} == {"epsilon", "delta", "noise"}


def test_every_schedule_starts_with_values_that_are_allowed() -> None:
    for schedule in settings.form()["parameters"]:
        assert settings.read(texts(schedule=schedule)).schedule == schedule
