"""The options of ``dither train``, and the settings of a recipe that are among them."""

import argparse
from typing import Any

from dither.cli.options import (
    BATCH_SIZE_HELP,
    CLIP_NORM_HELP,
    CLIPPING_HELP,
    DATASETS,
    MISSING,
    NOISES,
    SAMPLINGS,
    TABLES,
    add_schedule,
    number,
    number_or_time,
    parse_schedule,
)
from dither.cli.torchrun import BACKENDS
from dither.types import CLIPPINGS

_SETTINGS = (
    "epsilon", "delta", "dataset_size", "compute", "batch_size", "steps", "epochs", "clipping",
    "clip_norm", "optimizer", "learning_rate", "noise", "sampling", "averaging", "tune",
)  # fmt: skip


EPSILON, TABLE_EPSILON = 3.0, 1.0
"""ε where none is given; that of tables is the estimators' own."""


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a recipe that are given; dither chooses the others."""
    given = {name: getattr(arguments, name) for name in _SETTINGS if hasattr(arguments, name)}
    if hasattr(arguments, "schedule"):
        given["stepsizes"] = parse_schedule(arguments)
    return {"epsilon": EPSILON, **given}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the defaults train on scikit-learn's digits."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default="digits",
        help=f"a table ({', '.join(TABLES)}), one of {', '.join(DATASETS)}, the path of a .npz "
        "file, or of a directory (or tar) with one folder of images per class",
    )
    for name, metavar, text in (
        ("schema", "FILE", "the public schema of a table: see dither schema"),
        ("drop", "A,B,…", "columns of the schema that are left out, separated by commas"),
        (
            "classes",
            "A,B,…",
            "the public set of classes, separated by commas; default: those that occur, and the "
            "privacy statement says so. The schema of a table has them",
        ),
        ("purpose", "TEXT", "what the model is for; the report of the run says it"),
        ("public-test", "FILE", "a file of public records to evaluate on, in the same format"),
        (
            "users",
            "COLUMN",
            "whose each row is: a column of a table, default that of its schema, or an array of a "
            ".npz file. Then people are protected instead of rows, and n and m are numbers of them",
        ),
        ("data-dir", "DIR", "directory of the standard sets; default: $DITHER_DATA, else ./data"),
    ):
        data.add_argument(f"--{name}", default=argparse.SUPPRESS, metavar=metavar, help=text)
    data.add_argument(
        "--missing",
        choices=MISSING,
        default=argparse.SUPPRESS,
        help="rows without a user are left out (drop), or each is a user of its own; default: drop",
    )
    for name, metavar, text in (
        (
            "rows-per-user",
            "K",
            "the most rows of a user in a step, drawn anew each time; default: 8",
        ),
        (
            "dataset-size",
            "N",
            "public number of records, n, or of users with --users; default: the number in the "
            "data, which becomes public by that",
        ),
        (
            "holdout",
            "SHARE",
            "evaluate on private records of a table: each, or each user with all of the user's "
            "rows, is held out with this probability",
        ),
        (
            "evaluate-epsilon",
            "EPSILON",
            "ε of that evaluation. A record is in one part only: the larger of both ε counts",
        ),
    ):
        data.add_argument(
            f"--{name}", type=number, default=argparse.SUPPRESS, metavar=metavar, help=text
        )
    budget = parser.add_argument_group("budget")
    budget.add_argument(
        "--epsilon",
        type=number,
        default=argparse.SUPPRESS,
        help=f"ε, the target; default: {TABLE_EPSILON:g} for a table, else {EPSILON:g}",
    )
    budget.add_argument(
        "--delta", type=number, default=argparse.SUPPRESS, help="δ; default: 1/(10·n)"
    )
    chosen = parser.add_argument_group(
        "settings", "dither chooses what is not given, by dither.recipe, and prints its choice"
    )
    chosen.add_argument(
        "--compute",
        type=number_or_time,
        default=argparse.SUPPRESS,
        metavar="N|TIME",
        help='record-gradients of the run, or a time such as "2 min" or "90 s", for which the '
        "speed is measured on synthetic records",
    )
    for name, metavar, text in (
        ("batch-size", "M", BATCH_SIZE_HELP),
        ("clip-norm", "C", CLIP_NORM_HELP),
        ("learning-rate", "LR", "of the optimizer; step sizes are multiplied by it"),
        (
            "tune",
            "SHARE",
            "share of ε, up to 0.5, to choose the learning rate by trials",
        ),
    ):
        chosen.add_argument(
            f"--{name}", type=number, default=argparse.SUPPRESS, metavar=metavar, help=text
        )
    for name, choices, text in (
        ("clipping", CLIPPINGS, CLIPPING_HELP),
        ("noise", NOISES, "how noise is spread over the steps"),
        ("sampling", SAMPLINGS, "how batches are drawn; correlated noise is cyclic"),
        ("optimizer", ("adam", "adamw", "momentum", "sgd"), "the optimizer"),
        ("averaging", ("ema", "tail", "none"), "which average of the models of the steps is kept"),
    ):
        chosen.add_argument(f"--{name}", choices=choices, default=argparse.SUPPRESS, help=text)
    add_schedule(
        chosen, help_text="step sizes relative to the learning rate, as in linear:start=1,end=0.05"
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        default="auto",
        metavar="auto|linear|gam|mlp|cnn|MODULE:FUNCTION",
        help="of tables linear, gam or mlp, and auto chooses by the schema; of others linear, mlp, "
        "which is auto, cnn, or a function of (shape of a record, number of classes)",
    )
    model.add_argument(
        "--device",
        choices=tuple(BACKENDS),
        default="cpu",
        help="device of the model; under torchrun one GPU per rank",
    )
    model.add_argument(
        "--seed",
        type=number,
        default=argparse.SUPPRESS,
        help="for experiments only: a seeded run is not private to anyone who can guess the seed",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--run-dir",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="a new directory for the model, checkpoints and the ledger; default for a table: "
        "NAME-run, in the current directory",
    )
    output.add_argument(
        "--resume", action="store_true", help="continue the run in --run-dir, if there is one"
    )
    output.add_argument(
        "--ledger",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="one budget for all runs on the same data; see dither ledger",
    )
    output.add_argument(
        "--checkpoint-every",
        type=number,
        default=50,
        metavar="STEPS",
        help="steps between checkpoints in --run-dir; with correlated noise, rounded up to whole "
        "cycles",
    )
    output.add_argument(
        "--canaries",
        type=number,
        default=argparse.SUPPRESS,
        metavar="N",
        help="add about half of N random records to the data, for dither audit --run-dir DIR "
        "--attack one-run; this costs some accuracy",
    )
    output.add_argument(
        "--plot", default=argparse.SUPPRESS, metavar="FILE", help="draw the training curves"
    )
    output.add_argument("--quiet", action="store_true", help="no progress, one line of output")
    output.add_argument("--json", action="store_true", help="print JSON instead of text")
