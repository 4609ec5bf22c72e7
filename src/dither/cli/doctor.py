"""Check the environment: missing or old packages, and what this machine cannot do."""

import argparse
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dither import __version__
from dither.cli.options import print_json

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Packages are imported where they are tried, so that a missing one is reported.

NAME = "doctor"
HELP = "check the environment and list what is missing"

_HALF_PRECISION = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: its name.
        state: "ok", "missing" (dither does not work) or "optional" (only an extra does not).
        detail: the version found, or what to do.
    """

    what: str
    state: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output's form."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Check everything, print, and return 1 if dither cannot work here."""
    findings = list(diagnose())
    if arguments.json:
        print_json([asdict(each) for each in findings])
    else:
        _print(findings)
    return int(any(each.state == "missing" for each in findings))


def diagnose() -> Iterator[Finding]:
    """Yield the result of every check, most needed first."""
    yield Finding("dither", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield from _check_packages()
    yield _try("random bits", _random_bits)
    yield _try("ε of a known mechanism", _known_epsilon)
    yield _try("ledger", _ledger)
    yield _try("computing", _torch)
    yield _check_half_precision()


def _check_packages() -> Iterator[Finding]:
    """Check the packages that dither requires, and those of its extras."""
    from packaging.requirements import Requirement

    for text in metadata.requires("dither") or ():
        wanted = Requirement(text)
        extra = next((e for e in _EXTRAS if _is_for(wanted, e)), None)
        if extra is None and wanted.marker is not None and not wanted.marker.evaluate():
            continue
        yield _check_package(wanted, extra)


_EXTRAS = {
    "opacus": "dither.integrations.opacus",
    "parquet": "tables in .parquet files",
    "transformers": "dither.integrations.transformers",
}
"""Extras for users, and what they are for; the others are for developers."""


def _is_for(wanted: "Requirement", extra: str) -> bool:
    if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
        return False
    return wanted.marker.evaluate({"extra": extra})


def _check_package(wanted: "Requirement", extra: str | None) -> Finding:
    state = "missing" if extra is None else "optional"
    use = "" if extra is None else f", for {_EXTRAS[extra]}: pip install 'dither[{extra}]'"
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Finding(wanted.name, state, f"not installed; {wanted.specifier} is needed{use}")
    if not wanted.specifier.contains(found, prereleases=True):
        return Finding(wanted.name, state, f"{found}, but {wanted.specifier} is needed{use}")
    return Finding(wanted.name, "ok", found)


def _try(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", check())
    except (ArithmeticError, ImportError, OSError, ValueError, sqlite3.Error) as problem:
        return Finding(what, "missing", f"{type(problem).__name__}: {problem}")


def _random_bits() -> str:
    """Draw bits as training does, and check that half of them are ones."""
    import numpy as np

    from dither.randomness import Source

    bits = np.unpackbits(Source(None).stream("doctor", 0).bytes(10_000))
    ones = int(bits.sum())
    # The ones among 80,000 bits are 1,000 or more off their mean once in 10^12.
    if not abs(ones - bits.size // 2) < 1_000:
        raise ArithmeticError(f"{ones:,} of {bits.size:,} random bits are ones")
    return "AES-256 in counter mode, keyed by the operating system"


def _known_epsilon() -> str:
    """Account for one full-batch step, which has a closed form."""
    from dither import accounting

    z, found = 2.0, accounting.epsilon([2.0], sample_rate=1.0, delta=1e-5).epsilon
    above = math.erfc((found * z - 1.0 / (2.0 * z)) / math.sqrt(2.0)) / 2.0
    below = math.erfc((found * z + 1.0 / (2.0 * z)) / math.sqrt(2.0)) / 2.0
    delta = above - math.exp(found) * below
    if not 0.99e-5 <= delta <= 1.0000001e-5:
        raise ArithmeticError(f"ε = {found:.6g} of z = 2 at δ = 1e-5 has δ = {delta:.6g}")
    return f"{found:.6f}, agrees with the closed form"


def _ledger() -> str:
    from dither.ledger import Ledger

    with tempfile.TemporaryDirectory() as folder:
        Ledger(Path(folder) / "ledger.sqlite")
    return f"SQLite {sqlite3.sqlite_version}, tried in {tempfile.gettempdir()}"


def _torch() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    return f"PyTorch on {threads}, {device}"


def _check_half_precision() -> Finding:
    """Try a product in another process, which dies on machines that misreport their CPU."""
    ended = subprocess.run(  # noqa: S603 - our own interpreter and a constant
        [sys.executable, "-c", _HALF_PRECISION], capture_output=True, check=False
    )
    if ended.returncode == 0:
        return Finding("half precision", "ok", "bfloat16 works")
    detail = "bfloat16 does not work here; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 may help"
    return Finding("half precision", "optional", detail)


def _print(findings: list[Finding]) -> None:
    for each in findings:
        sys.stdout.write(f"{each.state:8}  {each.what}: {each.detail}\n")
    missing = [each.what for each in findings if each.state == "missing"]
    verdict = (
        f"dither does not work here: {', '.join(missing)}" if missing else "dither works here."
    )
    sys.stdout.write(f"{verdict}\n")
