"""``dither train`` on a table: from a file and its public schema to a complete run directory."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli.options import (
    TABLE_MODELS,
    check_user_options,
    parse_schedule,
    print_json,
    user_settings,
)
from dither.cli.train_options import TABLE_EPSILON
from dither.types import rounded

if TYPE_CHECKING:
    import pandas as pd

    from dither.estimators.base import PrivateEstimator
    from dither.evaluation import Evaluation
    from dither.ledger import Ledger
    from dither.schema import Schema
    from dither.types import PrivacyBound

_REFUSED = (
    "averaging", "canaries", "checkpoint_every", "classes", "clipping", "data_dir",
    "device", "learning_rate", "optimizer", "plot", "resume", "sampling",
)  # fmt: skip
_SETTINGS = ("batch_size", "clip_norm", "compute", "delta", "epochs", "noise", "steps", "tune")
_MOST_SEED = 2**32 - 1
"""The largest seed that scikit-learn takes."""


def check(arguments: argparse.Namespace) -> None:
    """Check the options of a table, without reading anything."""
    name = Path(arguments.data).name
    if not hasattr(arguments, "schema"):
        raise validate.InvalidValueError(
            f"schema must be given for a table, got {name!r} alone: begin one with dither schema "
            f"{shlex.quote(arguments.data)} -o schema.toml"
        )
    for option in _REFUSED:
        value = getattr(arguments, option, None)
        if value is not None and value != arguments.parser.get_default(option):
            raise validate.InvalidValueError(
                f"{option} must not be given for a table, got {value!r} for {name!r}"
            )
    validate.choice(("auto", *TABLE_MODELS), model=arguments.model)
    for given, missing in (("holdout", "evaluate_epsilon"), ("evaluate_epsilon", "holdout")):
        if hasattr(arguments, given) and not hasattr(arguments, missing):
            raise validate.InvalidValueError(
                f"{given} needs --{missing.replace('_', '-')}, got {getattr(arguments, given)!r} "
                "alone"
            )
    if not 0 <= getattr(arguments, "seed", 0) <= _MOST_SEED:
        raise validate.InvalidValueError(
            f"seed must be from 0 to {_MOST_SEED} for a table, got {arguments.seed}"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise validate.InvalidValueError(
            f"a table is trained on by one process, got WORLD_SIZE = {os.environ['WORLD_SIZE']}"
        )


@dataclass(frozen=True)
class _Parts:
    """The records to train on, those to evaluate on, and the name of the split."""

    train: "pd.DataFrame"
    holdout: "pd.DataFrame | None"
    split: str
    is_counted: bool
    train_size: int
    holdout_size: int


@dataclass(frozen=True)
class _Trained:
    """What a run has given."""

    estimator: "PrivateEstimator"
    directory: Path
    features: int
    metrics: dict[str, float]
    evaluation: "Evaluation | None"


def run(arguments: argparse.Namespace) -> None:
    """Read, train, save, evaluate where it is paid for, and print."""
    check(arguments)
    schema = _read_schema(arguments)
    directory = Path(getattr(arguments, "run_dir", _default_directory(arguments.data)))
    _check_new(directory)
    parts = _split(arguments, schema, schema.read(arguments.data))
    test = getattr(arguments, "public_test", None)
    public = None if test is None else schema.read(test)
    for each in (parts.holdout, public):  # what cannot be used is found before training
        if each is not None:
            schema.encode_target(each)
    with _new_directory(directory):
        trained = _train(arguments, schema, parts, public, directory)
    _print(arguments, trained)


def _default_directory(data: str) -> str:
    name = Path(data).name
    stem = name.removesuffix(".gz") if name.lower().endswith(".gz") else name
    return f"{Path(stem).stem}-run"


def _check_new(directory: Path) -> None:
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise validate.InvalidValueError(
            f"run_dir must be new or empty, got {str(directory)!r}: give another with --run-dir; "
            "another run costs ε again"
        )


@contextmanager
def _new_directory(directory: Path) -> Iterator[None]:
    """Make a directory before anything is spent; remove it again if nothing was written."""
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def _read_schema(arguments: argparse.Namespace) -> "Schema":
    """Return the schema, in which columns of --drop are ignored, with the users of --users."""
    from dither.schema import Ignored, Schema

    schema = Schema.load(arguments.schema)
    if schema.target is None:
        raise validate.InvalidValueError(
            f"schema must have a target to train on, got none in {arguments.schema!r}"
        )
    dropped = [name.strip() for name in getattr(arguments, "drop", "").split(",") if name.strip()]
    for name in dropped:
        if name not in schema.columns:
            raise validate.InvalidValueError(
                f"drop must be columns of the schema, {', '.join(schema.columns)}, got {name!r}"
            )
    columns = {k: Ignored() if k in dropped else column for k, column in schema.columns.items()}
    users = getattr(arguments, "users", schema.users)
    check_user_options(arguments, users)
    return Schema(columns, schema.target, users)


def _split(arguments: argparse.Namespace, schema: "Schema", table: "pd.DataFrame") -> _Parts:
    """Return all records, or those of a random split; a user's rows are on one side."""
    from dither.evaluation import new_split, train_holdout_split
    from dither.training.users import Users

    ids, count = None, len(table)
    if schema.users is not None:
        ids = schema.user_ids(table)
        count = Users.of(ids, **user_settings(arguments)).count
    is_counted = not hasattr(arguments, "dataset_size")
    n = count if is_counted else int(arguments.dataset_size)
    if not hasattr(arguments, "holdout"):
        return _Parts(table, None, "", is_counted, n, 0)
    train, holdout = train_holdout_split(
        table,
        holdout=arguments.holdout,
        users=ids,
        random_state=getattr(arguments, "seed", None),
    )
    sizes = [max(1, round(share * n)) for share in (1.0 - arguments.holdout, arguments.holdout)]
    return _Parts(train, holdout, new_split(users=ids is not None), is_counted, *sizes)


def _train(
    arguments: argparse.Namespace,
    schema: "Schema",
    parts: _Parts,
    public: "pd.DataFrame | None",
    directory: Path,
) -> _Trained:
    from dither.estimators import default_estimator

    settings = {name: getattr(arguments, name) for name in _SETTINGS if hasattr(arguments, name)}
    if hasattr(arguments, "schedule") or hasattr(arguments, "warmup"):
        settings["stepsizes"] = parse_schedule(arguments)
    ledger = _ledger(getattr(arguments, "ledger", None), parts, "training")
    estimator = default_estimator(
        schema,
        parts.train_size,
        model=arguments.model,
        epsilon=getattr(arguments, "epsilon", TABLE_EPSILON),
        dataset_size=parts.train_size,
        random_state=getattr(arguments, "seed", None),
        ledger=ledger,
        verbose=int(not (arguments.quiet or arguments.json)),
        **user_settings(arguments),
        **settings,
    )
    estimator.fit(parts.train)
    if parts.is_counted:  # which statement and report say
        estimator.dataset_size = None
    metrics = {} if public is None else _measure(estimator, schema, public)
    estimator.save(
        directory,
        data=Path(arguments.data).name,
        purpose=getattr(arguments, "purpose", ""),
        part=(parts.split, "training") if parts.split and ledger is None else None,
        metrics=metrics,
    )
    evaluation = _evaluate(arguments, estimator, schema, parts, directory)
    return _Trained(estimator, directory, estimator._shape[0], metrics, evaluation)


def _ledger(path: str | None, parts: _Parts, part: str) -> "Ledger | str | None":
    """Return the ledger of all records, or of one part of the split."""
    from dither.ledger import Ledger

    return path if path is None or not parts.split else Ledger(path).part(parts.split, part)


def _measure(estimator: Any, schema: "Schema", public: "pd.DataFrame") -> dict[str, float]:
    """Return metrics on public records."""
    import numpy as np
    from sklearn import metrics

    y = schema.encode_target(public)
    if schema.classes is None:
        predicted = estimator.predict(public)
        rmse = float(np.sqrt(metrics.mean_squared_error(y, predicted)))
        return {"rmse": rmse, "r2": float(metrics.r2_score(y, predicted))}
    chances, labels = estimator.predict_proba(public), estimator.classes_
    found = {
        "accuracy": float(np.mean(labels[chances.argmax(axis=1)] == y)),
        "log_loss": float(metrics.log_loss(y, chances, labels=labels)),
    }
    if len(labels) == 2 and len({*y.tolist()}) == 2:
        positive = schema.classes[1]
        scores = chances[:, [*labels].index(positive)]
        found["auc"] = float(metrics.roc_auc_score(y == positive, scores))
    return found


def _evaluate(
    arguments: argparse.Namespace,
    estimator: "PrivateEstimator",
    schema: "Schema",
    parts: _Parts,
    directory: Path,
) -> "Evaluation | None":
    """Evaluate on the holdout, at the δ of the training, and write the result."""
    if parts.holdout is None:
        return None
    from dither.evaluation import evaluate

    evaluation = evaluate(
        estimator,
        parts.holdout,
        epsilon=arguments.evaluate_epsilon,
        delta=estimator.privacy.delta,
        dataset_size=parts.holdout_size,
        classes=schema.classes,
        missing=getattr(arguments, "missing", "drop"),
        ledger=_ledger(getattr(arguments, "ledger", str(directory)), parts, "holdout"),
        random_state=getattr(arguments, "seed", None),
    )
    evaluation.save(directory)
    return evaluation


def _print(arguments: argparse.Namespace, trained: _Trained) -> None:
    estimator, evaluation = trained.estimator, trained.evaluation
    plan = estimator.plan_
    if arguments.json:
        print_json(
            {
                "run_dir": str(trained.directory),
                "model": type(estimator).__name__,
                "epsilon": _costs(trained)[0].epsilon,
                "delta": estimator.privacy.delta,
                "unit": plan.unit,
                "dataset_size": plan.dataset_size,
                "rows_per_user": plan.rows_per_user,
                "features": trained.features,
                "steps": plan.steps,
                "batch_size": plan.batch_size,
                "clip_norm": plan.clip_norm,
                "metrics": trained.metrics,
                "evaluation": None if evaluation is None else json.loads(evaluation.to_json()),
                "statement": estimator.privacy_statement(),
            }
        )
        return
    bound, both = _costs(trained)
    metrics = {f"test {name}": f"{value:.4f}" for name, value in trained.metrics.items()}
    if arguments.quiet:
        measured = "".join(f", {name} {value}" for name, value in metrics.items())
        sys.stdout.write(f"{bound}{both}{measured}; the model is in {trained.directory}\n")
        return
    rows = {
        "model": type(estimator).__name__,
        "features": f"{trained.features:,} of {len(estimator.schema_.columns):,} columns",
        f"{plan.unit}s": f"n = {plan.dataset_size:,}{_rows_text(plan.rows_per_user)}",
        "budget": f"ε = {rounded(bound.epsilon, 4)}, δ = {rounded(bound.delta, 3)}{both}"
        + ("" if hasattr(arguments, "epsilon") else f" (default: --epsilon {TABLE_EPSILON:g})"),
        "training": f"{plan.steps:,} steps, batch size {plan.batch_size:,}, clip norm "
        f"{plan.clip_norm:g}",
        **metrics,
    }
    width = max(map(len, rows))
    table = "".join(f"{name:<{width}}  {value}\n" for name, value in rows.items())
    sys.stdout.write(f"{table}\n{_quality(trained)}\n{estimator.privacy_statement()}\n\n")
    run_dir = shlex.quote(str(trained.directory))
    sys.stdout.write(f"Next: dither predict {run_dir} new.csv -o scores.csv\n")
    sys.stdout.write(f"      dither report {run_dir}\n")


def _rows_text(rows_per_user: int | None) -> str:
    return "" if rows_per_user is None else f", at most {rows_per_user:,} rows of each in a step"


def _costs(trained: _Trained) -> tuple["PrivacyBound", str]:
    """Return the cost of all that was released, and that of each part of it in words."""
    bound, evaluation = trained.estimator.privacy, trained.evaluation
    if evaluation is None:
        return bound, ""
    costs = bound.epsilon, evaluation.privacy.epsilon
    both = ": training ε = {}, evaluation ε = {}".format(*(rounded(each, 4) for each in costs))
    return replace(bound, epsilon=max(costs), lower=None), both


def _quality(trained: _Trained) -> str:
    evaluation = trained.evaluation
    if evaluation is not None:
        return (
            f"On private records that were held out, with noise and 95 % intervals:\n{evaluation}\n"
            f"A {trained.estimator.plan_.unit} is in one part only, so the larger of both costs "
            f"counts: ε = {rounded(_costs(trained)[0].epsilon, 4)}.\n"
        )
    if trained.metrics:
        return ""
    return (
        "Not evaluated: give public records with --public-test, or pay for private ones with "
        "--holdout 0.1 --evaluate-epsilon E, which costs nothing more up to the ε of training.\n"
    )
