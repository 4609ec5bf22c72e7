"""Estimators in run directories: what survives, what is charged, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from tests.estimators.tables import COSTS, SCHEMA, patients
from torch import nn

import dither
from dither.estimators import (
    PrivacyLeakWarning,
    PrivateClassifier,
    PrivateGAMClassifier,
    PrivateGAMRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
    PrivateSearchCV,
    PrivateSVC,
)
from dither.ledger import Ledger
from dither.reports.report import run_report
from dither.reports.text import odds
from dither.schedules import AdaGradNorm
from dither.validate import InvalidTypeError, InvalidValueError

TABLE = patients(400)
RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, (400, 3))
NAMED = pd.DataFrame(X, columns=["a", "b", "c"])
FEW: dict[str, Any] = {"epsilon": 3.0, "steps": 6, "noise": "uniform"}
BOUNDS: dict[str, Any] = {**FEW, "feature_bounds": (-1, 1)}
CLASSES: dict[str, Any] = {**BOUNDS, "classes": range(3)}
TARGETS: dict[str, Any] = {**BOUNDS, "target_bounds": (-4, 4)}
Y, Z = RNG.integers(0, 3, 400), X.sum(axis=1)


def linear(features: int, outputs: int) -> nn.Module:
    return nn.Linear(features, outputs)


ESTIMATORS: list[tuple[Any, Any, Any]] = [
    (PrivateLogisticRegression(**CLASSES), X, Y),
    (PrivateLogisticRegression(**FEW, classes=[0, 1, 2], feature_norm=2.0), NAMED, Y),
    (PrivateSVC(**{**CLASSES, "feature_bounds": dict.fromkeys("abc", (-1, 1))}), NAMED, Y),
    (PrivateLinearRegression(**TARGETS).set_params(dataset_size=np.int64(410)), X, Z),
    (
        PrivateGAMClassifier(**CLASSES).set_params(
            bins=np.int64(5), pairs=np.array([["x0", "x2"]])
        ),
        X,
        Y,
    ),
    (PrivateGAMClassifier(schema=SCHEMA, pairs=[("age", "sex")], **FEW), TABLE, None),
    (PrivateGAMRegressor(**TARGETS, bins=3), NAMED, Z),
    (PrivateGAMRegressor(schema=COSTS, random_state=1, **FEW), TABLE, None),
    (PrivateLogisticRegression(schema=SCHEMA.to_dict(), **FEW), TABLE, None),
    (PrivateMLPClassifier([np.int64(5), 4], **CLASSES), X, Y),
    (PrivateMLPRegressor((4,), **TARGETS), X, Z),
    (PrivateMLPRegressor((4,), schema=COSTS, **FEW), TABLE, None),
    (PrivateClassifier(linear, tune=0.2, **{**CLASSES, "steps": 20}), X, Y),
    (PrivateRegressor(linear, **TARGETS), X, Z),
]


def name_of(case: Any) -> str | None:
    return type(case).__name__ if hasattr(case, "get_params") else None


def fitted(model: Any, x: Any = X, y: Any = Y, **more: Any) -> Any:
    return clone(model).fit(x, y, **more)


def module_of(model: Any) -> dict[str, Any]:
    return {"module": linear} if hasattr(model, "module") else {}


@pytest.mark.parametrize(("model", "x", "y"), ESTIMATORS, ids=name_of)
def test_what_is_loaded_is_what_was_saved(model: Any, x: Any, y: Any, tmp_path: Path) -> None:
    model = fitted(model, x, y)
    path = model.save(tmp_path / "run", data="patients.csv", purpose="a test")
    loaded = dither.load(path, **module_of(model))
    assert type(loaded) is type(model)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            assert np.array_equal(getattr(loaded, method)(x), getattr(model, method)(x))
    assert loaded.privacy == model.privacy
    assert loaded.plan_ == model.plan_
    assert loaded.privacy_statement() == model.privacy_statement()
    assert loaded.n_features_in_ == model.n_features_in_
    assert [*getattr(loaded, "feature_names_in_", ())] == [*getattr(model, "feature_names_in_", ())]
    if hasattr(model, "shapes"):
        for one, other in zip(loaded.shapes(), model.shapes(), strict=True):
            assert np.array_equal(one.effects, other.effects)
            assert np.array_equal(one.noise, other.noise)
    # The fit is charged to the directory's own ledger, exactly, and the report agrees.
    ledger = Ledger(path, create=False)
    (run,) = ledger.runs.values()
    assert ledger.total(model.privacy.delta).epsilon == model.privacy.epsilon
    assert run.entry.fingerprint == model.plan_.fingerprint
    assert not run.is_open
    ledger.close()
    report = run_report(path)
    assert report.warnings == ()
    assert report.claim.verdict == ("seeded" if model.random_state is not None else "proven")
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == model.privacy.epsilon
    again = loaded.save(tmp_path / "again")
    assert np.array_equal(dither.load(again, **module_of(model)).predict(x), model.predict(x))


def test_files_are_json_and_safetensors(tmp_path: Path) -> None:
    path = fitted(PrivateGAMClassifier(schema=SCHEMA, **FEW), TABLE, None).save(tmp_path / "run")
    assert {file.name for file in path.iterdir()} == {
        "run.json", "plan.json", "result.json", "model.json", "model.safetensors", "schema.json",
        "ledger.sqlite", "ledger.sqlite.mark",
    }  # fmt: skip
    for file in path.glob("*.json"):
        json.loads(file.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    with safetensors.safe_open(path / "model.safetensors", framework="np") as opened:
        assert {"coef", "intercept"} <= {*opened.keys()}
    assert dither.Schema.load(path / "schema.json") == SCHEMA
    assert b"pickle" not in b"".join(file.read_bytes() for file in path.iterdir())


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(["a", "b"], "U"), ([3, 7], "i"), ([False, True], "b"), ([1.0, 2.0], "f")],
)
def test_labels_keep_their_type(labels: list[Any], kind: str, tmp_path: Path) -> None:
    y = np.array(labels)[(X[:, 0] > 0).astype(int)]
    model = fitted(PrivateLogisticRegression(**{**CLASSES, "classes": labels}), X, y)
    predicted = dither.load(model.save(tmp_path / "run")).predict(X)
    assert predicted.dtype == model.predict(X).dtype
    assert predicted.dtype.kind == kind
    objects = fitted(PrivateLogisticRegression(**{**CLASSES, "classes": np.array(labels, object)}),
                     X, y).save(tmp_path / "objects")  # fmt: skip
    assert dither.load(objects).classes_.tolist() == labels


def test_labels_that_json_has_not_are_refused(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")
    model = fitted(PrivateLogisticRegression(**{**CLASSES, "classes": [0, 1, 2]}))
    model.classes_ = days
    with pytest.raises(InvalidTypeError, match="classes must be texts, numbers or truth values"):
        model.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_table_may_have_its_columns_in_any_order(tmp_path: Path) -> None:
    model = fitted(PrivateGAMClassifier(schema=SCHEMA, **FEW), TABLE, None)
    loaded = dither.load(model.save(tmp_path / "run"))
    new = patients(50, seed=9)
    other = new[new.columns[::-1]].assign(more=1).drop(columns=["ill", "patient"])
    assert np.array_equal(loaded.predict_proba(other), model.predict_proba(new))
    named = dither.load(fitted(PrivateSVC(**CLASSES), NAMED, Y).save(tmp_path / "named"))
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict(NAMED[["c", "b", "a"]])


def test_modules_of_ones_own_must_be_given(tmp_path: Path) -> None:
    model = fitted(PrivateClassifier(linear, **CLASSES))
    path = model.save(tmp_path / "run")
    with pytest.raises(InvalidTypeError, match="module must be given to load a model of one's own"):
        dither.load(path)
    instance = dither.load(path, module=nn.Linear(3, 3))
    assert np.array_equal(instance.predict(X), model.predict(X))
    with pytest.raises(InvalidValueError, match="module must be the one that was trained") as found:
        dither.load(path, module=nn.Sequential(nn.Linear(3, 3)))
    assert "\n" not in str(found.value)


def test_a_shared_ledger_is_referred_to_and_not_charged_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "shared.sqlite")
    for given in (ledger, tmp_path / "shared.sqlite", ledger.part("split", "train")):
        model = fitted(PrivateLogisticRegression(ledger=given, **CLASSES))
        runs, spent = [*ledger.runs], ledger.total(1e-4).epsilon
        path = model.save(tmp_path / f"run{len(runs)}")
        assert [*ledger.runs] == runs
        assert ledger.total(1e-4).epsilon == spent
        about = json.loads((path / "run.json").read_text())
        assert about["ledger"] == str((tmp_path / "shared.sqlite").resolve())
        assert about["run"] == runs[-1]
        assert not (path / "ledger.sqlite").exists()
        assert run_report(path).claim.verdict == "proven"
    model.set_params(ledger=Ledger(tmp_path / "other.sqlite"))
    with pytest.raises(InvalidValueError, match="ledger must have the fit, got .*other.sqlite"):
        model.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_of_fits_with_the_same_plan_each_is_saved_with_its_own_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "shared.sqlite")
    settings = {**CLASSES, "classes": [0, 1, 2]}
    models = [
        fitted(PrivateLogisticRegression(ledger=given, **settings))
        for given in (ledger, ledger.part("split", "holdout"))
    ]
    paths = [model.save(tmp_path / f"run{k}") for k, model in enumerate(models)]
    saved = [json.loads((path / "run.json").read_text())["run"] for path in paths]
    assert saved == [*ledger.runs]
    module = fitted(PrivateClassifier(linear, ledger=ledger, **settings))
    assert module._result.run == [*ledger.runs][-1]


def test_a_ledger_in_a_directory_confirms_the_run(tmp_path: Path) -> None:
    for k, given in enumerate((tmp_path / "new", str(tmp_path / "new"))):
        model = fitted(PrivateLogisticRegression(ledger=given, **CLASSES))
        path = model.save(tmp_path / f"run{k}")
        about = json.loads((path / "run.json").read_text())
        assert about["ledger"] == str((tmp_path / "new/ledger.sqlite").resolve())
        assert run_report(path).claim.verdict == "proven"


def test_a_part_of_a_split_is_in_the_new_ledger(tmp_path: Path) -> None:
    model = fitted(PrivateLogisticRegression(**CLASSES))
    ledger = Ledger(model.save(tmp_path / "run", part=("split", "train")), create=False)
    evaluation = dither.plan(
        epsilon=1.0, delta=model.privacy.delta, dataset_size=400, batch_size=400, steps=1
    )
    other = ledger.part("split", "test").register(evaluation)
    other.finish(0, float(evaluation.charges[0]))
    other.end()
    assert ledger.total(model.privacy.delta).epsilon == model.privacy.epsilon  # the larger


def test_leaks_and_weights_are_kept(tmp_path: Path) -> None:
    X_scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    with pytest.warns(PrivacyLeakWarning):
        model = PrivateLogisticRegression(**{**BOUNDS, "feature_bounds": (-3, 3)}).fit(
            X_scaled, Y, sample_weight=np.linspace(0.1, 1.0, 400)
        )
    path = model.save(tmp_path / "run")
    loaded = dither.load(path)
    assert not loaded.privacy.is_upper_bound
    assert loaded.privacy_statement() == model.privacy_statement()
    text = " ".join(loaded.privacy_statement().split())
    assert "NOT PROVEN: the classes were derived" in text or "NOT PROVEN: the features were" in text
    assert "Sample weights were given" in text
    report = run_report(path)
    ledger = Ledger(path)
    assert not ledger.total(model.privacy.delta).is_upper_bound
    assert not ledger.total_of(report.run or "", delta=model.privacy.delta).is_upper_bound
    assert "Sample weights were given" in " ".join(report.statement)
    assert "Sample weights were given" in dict(odds(report))["Weights"]
    assert report.claim.verdict == "conditional"
    assert {*report.derived_from_private_data} == {
        "the classes", "the means and variances of the features"
    }  # fmt: skip


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    model = fitted(PrivateLogisticRegression(**CLASSES))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidValueError, match="run directory must be new or empty") as caught:
        model.save(tmp_path)
    assert "resume" not in str(caught.value)  # a fit cannot be
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    path = model.save(tmp_path / "run")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(InvalidValueError, match="run directory must be new or empty"):
        model.save(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_what_cannot_be_saved_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(NotFittedError):
        PrivateLogisticRegression().save(path)
    search = PrivateSearchCV(PrivateLogisticRegression(**CLASSES), {"clip_norm": [1.0]}).fit(X, Y)
    with pytest.raises(InvalidValueError, match="cost of a search, whose best estimator this is"):
        search.best_estimator_.save(path)
    reacting = PrivateLogisticRegression(
        **{**CLASSES, "stepsizes": AdaGradNorm(1.0, 1e-3), "batch_size": 100}
    )
    with pytest.raises(InvalidValueError, match="stepsizes must be fixed in advance for a model"):
        fitted(reacting).save(path)
    with pytest.raises(InvalidTypeError, match="purpose must be"):
        fitted(PrivateLogisticRegression(**CLASSES)).save(path, purpose=3)
    assert not path.exists()


def edited(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        fields = json.loads((path / name).read_text(encoding="utf-8"))
        changed = change(fields)
        text = json.dumps(fields if changed is None else changed)
        (path / name).write_text(text, encoding="utf-8")

    return edit


def damaged(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda path: (path / name).write_bytes(content)


def flipped(path: Path) -> None:
    raw = bytearray((path / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (path / "model.safetensors").write_bytes(raw)


TAMPERED: dict[str, Callable[[Path], Any]] = {
    **{
        f"no {name}": lambda path, name=name: (path / name).unlink()  # type: ignore[misc]
        for name in ("model.json", "plan.json", "result.json", "schema.json", "model.safetensors")
    },
    "a format": edited("model.json", lambda facts: facts.update(format="dither-model-9")),
    "a class": edited("model.json", lambda facts: facts.update({"class": "os.system"})),
    "a list": edited("model.json", lambda _: []),
    "a parameter": edited("model.json", lambda facts: facts["parameters"].update(evil=1)),
    "bins": edited("model.json", lambda facts: facts["parameters"].update(bins="many")),
    "other bins": edited("model.json", lambda facts: facts["parameters"].update(bins=3)),
    "leaks": edited("model.json", lambda facts: facts.update(leaks=["something"])),
    "no key": edited("model.json", lambda facts: facts.pop("shape") and None),
    "a bound": edited("schema.json", lambda f: f["columns"]["age"].update(bounds=[0, 90])),
    "no schema": edited("schema.json", lambda fields: fields.pop("columns") and None),
    "epsilon": edited("result.json", lambda facts: facts["bound"].update(epsilon=0.1)),
    "delta": edited("result.json", lambda facts: facts["bound"].update(delta=1e-9)),
    "no bound": edited("result.json", lambda facts: facts.pop("bound") and None),
    "text": damaged("model.json", b"{"),
    "bytes": damaged("plan.json", b"\xff\xfe"),
    "a plan": edited("plan.json", lambda facts: facts.update(dataset_size=4000)),
    "weights": flipped,
    "other weights": damaged("model.safetensors", b"pickle"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = fitted(PrivateGAMClassifier(schema=SCHEMA, **FEW), TABLE, None)
    path: Path = model.save(tmp_path_factory.mktemp("saved") / "run")
    return path


@pytest.mark.parametrize("how", TAMPERED)
def test_files_that_were_changed_are_refused_in_one_line(
    how: str, saved: Path, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    dither.load(path)
    TAMPERED[how](path)
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        dither.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or str(caught.value).startswith("plan must be unchanged")


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidValueError, match="must be a run directory with model.json"):
            dither.load(path)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (PrivateLinearRegression(**FEW, feature_norm=10.0), X),
        (PrivateGAMRegressor(**BOUNDS), X),
        (PrivateMLPRegressor((4,), **BOUNDS), X),
        (PrivateRegressor(linear, **BOUNDS), X),
        (PrivateLinearRegression(schema=COSTS, **FEW), TABLE),
    ],
    ids=name_of,
)
def test_predictions_are_within_the_bounds_of_the_target(
    model: Any, x: Any, tmp_path: Path
) -> None:
    low, high = (0.0, 0.7) if model.schema is None else (0.0, 1000.0)
    # With such steps the weights are huge: most scores are far beyond the bounds.
    model = clone(model).set_params(stepsizes=np.full(6, 1e4), random_state=0)
    if model.schema is None:
        model.set_params(target_bounds=(low, high))
    model = fitted(model, x, Z if model.schema is None else None)
    for each in (model, dither.load(model.save(tmp_path / "run"), **module_of(model))):
        predicted = each.predict(x)
        assert predicted.min() == low or predicted.max() == high
        assert ((predicted >= low) & (predicted <= high)).all()
