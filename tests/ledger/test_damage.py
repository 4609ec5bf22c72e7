"""Damaged files, full disks, folders that cannot be written to: a clear line, no false total."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.ledger.ledgers import charge, new, plan, run_all

from dither.ledger import DamagedLedgerError, Ledger, LedgerWriteError
from dither.ledger.files import DamagedCheckpointError, load_checkpoint, save_checkpoint

SEEN = (DamagedLedgerError, LedgerWriteError)


def total_or_refusal(path: Path) -> float | None:
    """Return the total, or None if the ledger is refused with one line."""
    try:
        ledger = Ledger(path, create=False)
        found = ledger.total(1e-5).epsilon
        ledger.close()
    except SEEN as refusal:
        if "\n" in str(refusal):
            raise
        return None
    return found


def flipped(source: Path, target: Path, place: int) -> None:
    content = bytearray(source.read_bytes())
    content[place] ^= 0x41
    target.write_bytes(bytes(content))


def copied(source: Path, folder: Path) -> Path:
    """Copy a ledger with what belongs to it, as a killed process leaves it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    for shared in folder.glob("*-shm"):
        shared.unlink()
    return folder / "shared.sqlite"


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that was closed."""
    folder = tmp_path_factory.mktemp("at_rest")
    ledger = new(folder)
    ledger.cap(2.0, 1e-5)
    run_all(ledger, plan(steps=12))
    ledger.close()
    assert not (folder / "shared.sqlite-wal").exists()
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose process was killed: most of it is in the journal."""
    folder = tmp_path_factory.mktemp("open")
    ledger = new(folder)
    run_all(ledger, plan(steps=12))
    kept = tmp_path_factory.mktemp("killed") / "files"
    copied(folder, kept)
    assert (kept / "shared.sqlite-wal").stat().st_size > 20_000
    return kept


@pytest.mark.parametrize("state", ["at_rest", "killed"])
def test_a_flipped_byte_gives_the_same_total_or_none(
    state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(state)
    expected = total_or_refusal(copied(source, tmp_path / "copy"))
    assert expected is not None
    refused = 0
    for file in sorted(source.iterdir()):
        if file.name.endswith("-shm"):
            continue
        for place in range(0, file.stat().st_size, 97):
            path = copied(source, tmp_path / "copy")
            flipped(file, tmp_path / "copy" / file.name, place)
            found = total_or_refusal(path)
            assert found in (None, expected), (file.name, place)
            refused += found is None
    assert refused > 20


@pytest.mark.parametrize("state", ["at_rest", "killed"])
def test_a_ledger_that_was_cut_off_is_refused(
    state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(state)
    expected = total_or_refusal(copied(source, tmp_path / "copy"))
    for file in sorted(source.iterdir()):
        if file.name.endswith("-shm"):
            continue
        content = file.read_bytes()
        for length in range(0, len(content), 1000):
            path = copied(source, tmp_path / "copy")
            (tmp_path / "copy" / file.name).write_bytes(content[:length])
            assert total_or_refusal(path) in (None, expected), (file.name, length)


def test_files_that_belong_to_a_ledger_must_be_there(killed: Path, tmp_path: Path) -> None:
    for name in ("shared.sqlite-wal", "shared.sqlite.mark"):
        path = copied(killed, tmp_path / "copy")
        (tmp_path / "copy" / name).unlink()
        with pytest.raises(SEEN):
            Ledger(path, create=False)


def test_a_damaged_ledger_spends_nothing(at_rest: Path, tmp_path: Path) -> None:
    path = copied(at_rest, tmp_path / "copy")
    mark = tmp_path / "copy" / "shared.sqlite.mark"
    mark.write_text(mark.read_text().replace('"entries": ', '"entries": 1'))
    with pytest.raises(DamagedLedgerError, match="entries are gone"):
        Ledger(path)


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.randn(40, 25), "b": torch.arange(300), "half": torch.randn(9).bfloat16()}


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path, kept = tmp_path / "c.safetensors", tensors()
    save_checkpoint(path, kept, {"step": 3, "name": "é"})
    found, facts = load_checkpoint(path)
    assert facts == {"step": 3, "name": "é"}
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    assert found.keys() == kept.keys()


def test_a_checkpoint_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {**tensors(), "large": torch.randn(5000)}, {"step": 3})
    content = path.read_bytes()
    for length in (*range(0, len(content), 1000), len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedCheckpointError, match="is damaged: .*in the ledger") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_with_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "c.safetensors", tmp_path / "d.safetensors"
    save_checkpoint(path, tensors(), {"step": 3})
    for place in range(0, path.stat().st_size, 41):
        flipped(path, other, place)
        with pytest.raises(DamagedCheckpointError):
            load_checkpoint(other)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    torch.save(tensors(), path)
    with pytest.raises(DamagedCheckpointError):
        load_checkpoint(path)


FULL = """
import sys
from pathlib import Path
from tests.ledger.ledgers import new, plan
from dither.ledger import LedgerWriteError
folder = Path(sys.argv[1])
ledger, made = new(folder), plan(steps=5000)
account, charged = ledger.register(made), 0
try:
    for step in range(made.steps):
        account.begin(step, 2.0)
        account.finish(step, 2.0)
        charged += 1
except LedgerWriteError as problem:
    print(problem)
(folder / "filler").unlink()
for step in range(charged, charged + 3):
    account.finish(step, 2.0)
print(charged + 3, len(ledger.runs[account.run].spent))
"""


def on_a_disk_of_its_own(
    folder: Path, prepare: str, script: Path, name: str
) -> subprocess.CompletedProcess[str]:
    """Run a script with a path on a disk of 600 KiB that only it can see."""
    disk = folder / "disk"
    disk.mkdir()
    shell = " && ".join(
        [
            f"mount -t tmpfs -o size=600k tmpfs {disk}",
            prepare.format(disk=disk),
            f"{sys.executable} {script} {disk / name}",
        ]
    )
    return subprocess.run(
        [shutil.which("unshare") or "unshare", "--map-root-user", "--mount", "sh", "-c", shell],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )


def test_a_full_disk_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(FULL)
    fill = "head -c 300000 /dev/zero > {disk}/filler"
    answer = on_a_disk_of_its_own(tmp_path, fill, script, "")
    assert answer.returncode == 0, answer.stderr
    problem, counts = answer.stdout.splitlines()
    assert "shared.sqlite': database or disk is full" in problem
    expected, found = map(int, counts.split())
    assert expected == found > 50


READ_ONLY = """
import sys
from dither.ledger import Ledger, LedgerWriteError
try:
    Ledger(sys.argv[1])
except LedgerWriteError as problem:
    print(problem)
"""


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    script = tmp_path / "read_only.py"
    script.write_text(READ_ONLY)
    answer = on_a_disk_of_its_own(tmp_path, "mount -o remount,ro {disk}", script, "shared.sqlite")
    assert "shared.sqlite': unable to open database file" in answer.stdout, answer.stderr
    assert answer.stdout.count("\n") == 1


def test_two_ledgers_on_one_file_see_each_other(tmp_path: Path) -> None:
    one, two, made = new(tmp_path), new(tmp_path), plan(steps=4)
    charge(one.register(made), made)
    assert two.total(1e-5) == made.bound
    two.close()
    assert one.total(1e-5) == made.bound
