import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from dither import accounting
from dither.cli import doctor, main
from dither.cli.doctor import Finding
from dither.ledger import Ledger
from dither.randomness import Stream


def findings(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Finding]:
    assert main(["doctor", "--json"]) == code
    return {each["what"]: Finding(**each) for each in json.loads(capsys.readouterr().out)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what depends on the machine: half precision."""
    monkeypatch.setattr(doctor, "_HALF_PRECISION", "pass")


def test_all_is_well_where_the_tests_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, 0)
    assert {"torch", "bottle", "opacus", "ledger", "half precision"} <= found.keys()
    assert all(each.state == "ok" for each in found.values())
    assert "1.993091" in found["ε of a known mechanism"].detail
    assert "pytest" not in found, "what only developers need is no user's concern"


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("dither works here.\n")


def version(missing: dict[str, str]) -> object:
    real = metadata.version

    def looked_up(name: str) -> str:
        if name in missing and not missing[name]:
            raise metadata.PackageNotFoundError(name)
        return missing.get(name) or real(name)

    return looked_up


def test_what_is_missing_or_too_old(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", version({"torch": "1.13", "bottle": "", "opacus": ""}))
    found = findings(capsys, 1)
    assert found["torch"] == Finding("torch", "missing", "1.13, but >=2.9 is needed")
    assert found["bottle"] == Finding("bottle", "missing", "not installed; >=0.13 is needed")
    assert found["opacus"].state == "optional"
    assert "pip install 'dither[opacus]'" in found["opacus"].detail
    assert main(["doctor"]) == 1
    assert "dither does not work here: bottle, torch" in capsys.readouterr().out


def test_parquet_files_are_an_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ['pyarrow>=17; extra == "parquet"'])
    monkeypatch.setattr(metadata, "version", version({"pyarrow": ""}))
    found = findings(capsys, 0)["pyarrow"]
    assert found.state == "optional"
    assert "for tables in .parquet files: pip install 'dither[parquet]'" in found.detail


def test_a_machine_that_cannot_do_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_HALF_PRECISION", "import os; os.abort()")
    assert findings(capsys, 0)["half precision"].state == "optional"


def test_checks_can_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Ledger, path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "__init__", full)
    monkeypatch.setattr(accounting, "epsilon", lambda *_, **__: SimpleNamespace(epsilon=1.9))
    monkeypatch.setattr(Stream, "fill", lambda self, buffer: buffer.fill(0))
    found = findings(capsys, 1)
    wrong = {what for what, each in found.items() if each.state == "missing"}
    assert wrong == {"ledger", "ε of a known mechanism", "random bits"}
    assert "No space left" in found["ledger"].detail
    assert "has δ = " in found["ε of a known mechanism"].detail
