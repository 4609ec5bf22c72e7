import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.errors import error_line

from dither.data import directory, load
from dither.data.cifar import CLASSES, TEST_BATCH, TRAIN_BATCHES

FOLDER = "cifar-10-batches-py"
PIXELS = 3072


class Malicious:
    """Creates a file when it is unpickled by anyone less careful."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.victim,)


def batch(labels: object, data: object = None, protocol: int = 2) -> bytes:
    if data is None:
        data = (np.arange(2 * PIXELS) % 251).astype(np.uint8).reshape(2, PIXELS)
    return pickle.dumps({b"data": data, b"labels": labels}, protocol=protocol)


def python_2_batch(raw: bytes, labels: bytes) -> bytes:
    """Write the opcodes that Python 2 wrote for the original files."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"K" + bytes([len(labels)]) + b"M" + struct.pack("<H", PIXELS) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + state + b"U\x06labels" + numbers + b"u."


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(TRAIN_BATCHES):
        (folder / name).write_bytes(batch([number, 9]))
    (folder / TEST_BATCH).write_bytes(batch([7, 8]))
    return folder


@pytest.mark.parametrize("place", ["cifar10", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_reads_batches_from_a_folder_and_a_tar(tmp_path: Path, place: str, packed: bool) -> None:
    folder = write(tmp_path / "made" / FOLDER)
    base = tmp_path / "base" / place
    base.mkdir(parents=True)
    if packed:
        with tarfile.open(base / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.add(folder, FOLDER)
    else:
        folder.rename(base / FOLDER)
    split = load("cifar10", data_dir=tmp_path / "base")
    assert split.test is not None
    assert split.train.inputs.shape == (10, 3, 32, 32)
    assert split.train.targets.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert split.test.targets.tolist() == [7, 8]
    assert split.train.classes == CLASSES
    expected = torch.arange(2 * PIXELS).remainder(251).reshape(2, 3, 32, 32).float() / 255
    assert torch.equal(split.test.inputs, expected)


def test_reads_what_python_2_and_later_protocols_wrote(tmp_path: Path) -> None:
    folder = write(tmp_path / FOLDER)
    raw = bytes(range(256)) * 24
    (folder / TEST_BATCH).write_bytes(python_2_batch(raw, bytes([3, 5])))
    (folder / TRAIN_BATCHES[0]).write_bytes(batch([1, 1], protocol=4))
    split = load("cifar10", data_dir=tmp_path)
    assert split.test is not None
    assert split.test.targets.tolist() == [3, 5]
    assert (split.test.inputs * 255).round().byte().numpy().tobytes() == raw


def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    victim = tmp_path / "created"
    evil = pickle.dumps({b"data": Malicious(victim), b"labels": [0]}, protocol=2)
    pickle.loads(evil)  # noqa: S301
    assert victim.exists()
    victim.unlink()
    folder = write(tmp_path / FOLDER)
    (folder / "data_batch_2").write_bytes(evil)
    line = error_line("cifar10", tmp_path)
    assert not victim.exists()
    assert "data_batch_2' is not a batch of CIFAR-10: it asks for " in line


@pytest.mark.parametrize(
    "call",
    [
        b"cos\nsystem\n",
        b"cposix\nsystem\n",
        b"cbuiltins\neval\n",
        b"c__builtin__\neval\n",
        b"cnumpy\nload\n",
        b"cnumpy._core.multiarray\nfromfile\n",
        b"c_codecs\ndecode\n",
        b"\x8c\x05numpy\x8c\x0dndarray.dumps\x93",
    ],
)
def test_nothing_else_can_be_called(tmp_path: Path, call: bytes) -> None:
    (write(tmp_path / FOLDER) / TEST_BATCH).write_bytes(b"\x80\x04" + call + b"(U\x02idtR.")
    assert "not allowed" in error_line("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is not a batch of CIFAR-10"),
        (b"hello", "is not a batch of CIFAR-10"),
        (batch([1, 2])[:-1], "is not a batch of CIFAR-10"),
        (b"\x80\x02c_codecs\nencode\nK\x01K\x02\x86R.", "is not a batch of CIFAR-10"),
        (pickle.dumps([1], protocol=2), "is not a batch of CIFAR-10"),
        (pickle.dumps({b"labels": [1]}, protocol=2), "is not a batch of CIFAR-10"),
        (batch([1], np.zeros((1, 3071), np.uint8)), "must have 3072 bytes per record"),
        (batch([1], np.zeros((1, PIXELS), np.int8)), "must have 3072 bytes per record"),
        (batch([1], np.zeros((1, PIXELS), object)), "must have 3072 bytes per record"),
        (batch([1], np.zeros((0, PIXELS), np.uint8), 4), "must have 3072 bytes per record"),
        (batch([1]), "must have a list of 2 labels"),
        (batch("ab"), "must have a list of 2 labels"),
        (batch([1, 2.0]), "integer labels from 0 to 9"),
        (batch([-1, 2]), "integer labels from 0 to 9"),
        (batch([1, 10]), "integer labels from 0 to 9"),
    ],
)
def test_damaged_batches_are_refused(tmp_path: Path, raw: bytes, expected: str) -> None:
    (write(tmp_path / FOLDER) / "data_batch_4").write_bytes(raw)
    line = error_line("cifar10", tmp_path)
    assert expected in line
    assert "data_batch_4'" in line


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / FOLDER)
    (folder / "data_batch_5").unlink()
    assert "data_batch_5' cannot be read as a batch of CIFAR-10" in error_line("cifar10", tmp_path)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(folder, FOLDER)
    folder.rename(tmp_path / "elsewhere")
    assert f"must hold {FOLDER}/data_batch_5" in error_line("cifar10", tmp_path)


def test_reads_a_tar_of_images_if_it_is_cifar10(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar10-jpeg.tar.xz"
    for classes in (CLASSES, CLASSES[1:]):
        with tarfile.open(path, "w:xz") as archive:
            for place in [f"{part}/{name}" for part in ("train", "test") for name in classes]:
                stream = io.BytesIO()
                Image.new("RGB", (32, 32), (255, 0, 0)).save(stream, "JPEG")
                member = tarfile.TarInfo(f"{place}/0001.jpg")
                member.size = len(stream.getvalue())
                archive.addfile(member, io.BytesIO(stream.getvalue()))
        if classes == CLASSES:
            assert load("cifar10", data_dir=tmp_path).train.targets.tolist() == list(range(10))
    assert "the ten classes of CIFAR-10" in error_line("cifar10", tmp_path)


@pytest.mark.evidence
@pytest.mark.skipif(not (directory() / "cifar10").exists(), reason="DITHER_DATA has no cifar10/")
def test_the_real_cifar10() -> None:
    split = load("cifar10")
    assert split.test is not None
    assert split.train.inputs.shape == (50_000, 3, 32, 32)
    assert split.test.inputs.shape == (10_000, 3, 32, 32)
    assert split.train.targets.bincount().tolist() == [5000] * 10
    assert split.test.targets.bincount().tolist() == [1000] * 10
    means = split.train.inputs.mean(dim=(0, 2, 3)).tolist()
    assert means == pytest.approx([0.491, 0.482, 0.447], abs=0.01)
