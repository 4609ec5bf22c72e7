"""Predict with the model of a run directory: one row per record, on stdout or in a file."""

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli.options import TABLES, is_table

if TYPE_CHECKING:
    import pandas as pd

NAME = "predict"
HELP = "predict with the model of a run directory"

_FORMAT = "%.8g"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run directory, the records and the output."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the run directory of dither train")
    parser.add_argument(
        "table",
        metavar="FILE",
        help=f"the records: a table ({', '.join(TABLES)}) with the columns of the schema, or a "
        ".npz file for models of such",
    )
    parser.add_argument(
        "-o",
        "--output",
        dest="scores",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a .csv or .parquet file; default: CSV on stdout",
    )
    parser.add_argument(
        "--id",
        default=argparse.SUPPRESS,
        metavar="COLUMN",
        help="a column of the table to copy in front of the predictions",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output file")


def run(arguments: argparse.Namespace) -> None:
    """Load the model, predict, and write."""
    output = getattr(arguments, "scores", None)
    if output is not None:
        _check_output(output, force=arguments.force)
    from dither.estimators import load

    model = load(arguments.run_dir)
    predictions = _predict(model, _read(model, arguments))
    if hasattr(arguments, "id"):
        predictions = _with_id(predictions, arguments)
    if output is None:
        predictions.to_csv(sys.stdout, index=False, float_format=_FORMAT)
        return
    _write(predictions, Path(output))
    sys.stdout.write(f"{len(predictions):,} predictions are in {output}.\n")


def _check_output(output: str, *, force: bool) -> None:
    file = validate.output_file((".csv", ".parquet"), output=output)
    if file.exists() and not force:
        raise validate.InvalidValueError(
            f"output must be a new file, got {output!r}, which exists: --force overwrites it"
        )


def _read(model: Any, arguments: argparse.Namespace) -> Any:
    """Return the records, as the model takes them."""
    if model.schema is not None:
        return model.schema.read(arguments.table)
    from dither.data import load_inputs

    if is_table(arguments.table) or hasattr(arguments, "id"):
        raise validate.InvalidValueError(
            f"run_dir must have a schema to predict from a table, got {arguments.run_dir!r} "
            "without one: give a .npz file, or use dither.load in Python"
        )
    inputs = load_inputs(arguments.table)
    if inputs.shape[1:] != model._shape:
        raise validate.InvalidValueError(
            f"records must have the shape of the training records, {model._shape}, got "
            f"{inputs.shape[1:]} in {arguments.table!r}"
        )
    return inputs


def _predict(model: Any, records: Any) -> "pd.DataFrame":
    import pandas as pd

    if not hasattr(model, "predict_proba"):
        return pd.DataFrame({"prediction": model.predict(records)})
    chances = model.predict_proba(records)
    columns = {f"p_{name}": chances[:, k] for k, name in enumerate(model.classes_)}
    return pd.DataFrame({"prediction": model.classes_[chances.argmax(axis=1)], **columns})


def _with_id(predictions: "pd.DataFrame", arguments: argparse.Namespace) -> "pd.DataFrame":
    """Return predictions after a column of the table, which the schema may ignore."""
    from dither.schema.tables import read_table

    if arguments.id in predictions.columns:
        raise validate.InvalidValueError(
            f"id must be no column of the predictions, got {arguments.id!r}"
        )
    table = read_table(arguments.table, [arguments.id])
    if arguments.id not in table.columns:
        raise validate.InvalidValueError(
            f"--id must be a column of {arguments.table!r}, got {arguments.id!r}"
        )
    predictions.insert(0, arguments.id, table[arguments.id].to_numpy())
    return predictions


def _write(predictions: "pd.DataFrame", file: Path) -> None:
    from dither.ledger.files import write_atomic

    if file.suffix.lower() == ".csv":
        write_atomic(file, predictions.to_csv(index=False, float_format=_FORMAT).encode())
        return
    stream = io.BytesIO()
    try:
        predictions.to_parquet(stream, index=False)
    except ImportError:
        raise validate.InvalidValueError(
            "output: .parquet files need pyarrow; install it with: pip install 'dither[parquet]'"
        ) from None
    write_atomic(file, stream.getvalue())
