"""Finished runs on disk: what was written is read, whatever happened in between."""

from pathlib import Path

import pytest
from experiments.reproduction.adaptive import AdaptiveRun
from experiments.reproduction.catalogue import KINDS
from experiments.reproduction.head import HeadRun, HeadSetting
from experiments.reproduction.network import NetworkRun, NetworkSetting
from experiments.reproduction.run import Outcome, Run
from experiments.reproduction.store import Store

HEAD = HeadSetting(images=1000, dimension=20)
RUNS: tuple[Run, ...] = (
    HeadRun(HEAD, "inverse_sqrt", 2, 0.8, 2.5, "matched", "real", 1),
    AdaptiveRun(HEAD, 40, "raw", "growth-bound", 0.8, 1.0, 512.0, 1e-4, 0),
    NetworkRun(NetworkSetting(600, 60, 2), "mnist", 1.6, 0.5, 0),
)
OUTCOME = Outcome((20, 40), (10.25, 12.5), 0.75, {"share": 0.5})


def filled(directory: Path) -> Store:
    store = Store(directory, KINDS)
    with store.writing():
        for run in RUNS:
            store.add(run, OUTCOME, {"seconds": 1.0, "commit": "abc"})
    return store


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = filled(tmp_path / "new")
    assert store.read() == dict.fromkeys(RUNS, OUTCOME)
    assert [line["commit"] for line in store.lines()] == ["abc"] * 3
    assert (OUTCOME.best, OUTCOME.last) == (12.5, 12.5)
    assert Store(tmp_path / "nowhere", KINDS).read() == {}


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_half_a_last_line_is_left_out_and_taken_away(tmp_path: Path, kept: int) -> None:
    store, path = filled(tmp_path), tmp_path / "runs.jsonl"
    complete = path.read_bytes()
    lines = complete.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])
    assert set(store.read()) == set(RUNS[:2])
    with store.writing():
        store.add(RUNS[2], OUTCOME, {"seconds": 1.0, "commit": "abc"})
    assert path.read_bytes() == complete


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    store = filled(tmp_path)
    refused = pytest.raises(ValueError, match="no other run is writing to")
    with store.writing(), refused, Store(tmp_path, KINDS).writing():
        pass
    with store.writing():
        pass


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("oops", "Expecting value"),
        ('{"kind": "head"}', "a run has accuracies, epsilon, kind"),
        ("[]", "a run has"),
        (None, "its kind is 'teapot'"),
    ],
)
def test_what_is_no_finished_run_is_refused(tmp_path: Path, line: str | None, why: str) -> None:
    store, path = filled(tmp_path), tmp_path / "runs.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(first + "\n" + (line or first.replace('"head"', '"teapot"', 1)) + "\n")
    with pytest.raises(ValueError, match=f"out must be a directory whose .* in line 2: {why}"):
        store.read()


def test_a_run_with_other_fields_is_not_guessed_at(tmp_path: Path) -> None:
    store, path = filled(tmp_path), tmp_path / "runs.jsonl"
    path.write_text(path.read_text().replace('"every": 200', '"each": 200', 1))
    with pytest.raises(ValueError, match="HeadSetting has the fields images, batch_size"):
        store.read()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with (
        pytest.raises(
            ValueError, match="out must be a directory that can be written, got .* exists"
        ),
        Store(tmp_path / "file", KINDS).writing(),
    ):
        pass
    assert (tmp_path / "file").read_text() == "kept"
