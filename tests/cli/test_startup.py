"""Help and errors come at once: nothing heavy is imported before the arguments are checked."""

import subprocess
import sys

import pytest

import dither
from dither import accounting
from dither.cli import options
from dither.data.loading import NAMES
from dither.estimators.choosing import TABLE_MODELS
from dither.planning.planner import NOISES
from dither.reports.figures import SUFFIXES
from dither.reports.render import FORMATS
from dither.schema.tables import FILES

CODE = """
import sys
from dither.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = ("torch", "scipy", "sklearn", "matplotlib", "rich")
print("imported:", *(name for name in heavy if name in sys.modules))
"""


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "train --help",
        "train --epsilonn 3",
        "train --data huge.npz --epsilon -1",
        "train --data huge.csv --schema s.toml --optimizer adam",
        "train --data huge.csv",
        "train --data huge.csv --schema s.toml --model tree",
        "train --data huge.npz --resume",
        "train --data huge.npz --canaries 200",
        "predict run patients.csv -o scores.txt",
        "schema patients.csv -o no/such/schema.toml",
        "plan --epsilon -1",
        "plan --schedule bumpy",
        "account --noise-multiplier 0 --sample-rate 0.1 --steps 3 --delta 1e-5",
        "audit --trials 7",
        "ledger cap all.sqlite --epsilon -1 --delta 1e-5",
        "theory --plot figure.txt",
    ],
)
def test_nothing_heavy_is_imported_for_help_and_errors(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *command.split()], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("imported:\n")
    assert "help" in command or done.stderr.count("\n") == 1


def test_the_choices_are_those_of_the_library() -> None:
    assert options.ACCOUNTANTS == accounting.ACCOUNTANTS
    assert (*accounting.SAMPLINGS, "cyclic") == options.SAMPLINGS
    assert options.ATTACKS == dither.audit.ATTACKS
    assert options.NOISES == NOISES
    assert tuple(NAMES) == options.DATASETS
    assert tuple(dither.training.MODELS) == options.MODELS
    assert tuple(TABLE_MODELS) == options.TABLE_MODELS
    assert options.TABLES == FILES
    assert options.FIGURES == SUFFIXES
    assert tuple(FORMATS) == options.REPORTS
