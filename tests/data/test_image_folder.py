import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.errors import error_line

from dither.data import load

PLAIN = ("dog/1.png", "cat/2.png", "cat/1.png")
PARTS = ("train/dog/1.png", "train/cat/2.png", "test/cat/1.png")


def picture(seed: int, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def tree(folder: Path, names: tuple[str, ...], mode: str = "RGB") -> Path:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed, mode).save(folder / name)
    return folder


def packed(folder: Path, path: Path, inside: str = ".") -> Path:
    mode = {".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, inside)
    return path


def test_classes_without_parts(tmp_path: Path) -> None:
    split = load(tree(tmp_path / "pets", PLAIN))
    assert split.test is None
    assert split.train.classes == ("cat", "dog")
    assert split.train.targets.tolist() == [0, 0, 1]
    assert split.train.inputs.shape == (3, 3, 4, 5)
    expected = torch.tensor(np.asarray(picture(2))).permute(2, 0, 1).float() / 255
    assert torch.equal(split.train.inputs[0], expected)


def test_train_and_test(tmp_path: Path) -> None:
    split = load(tree(tmp_path / "pets", PARTS, "L"))
    assert split.test is not None
    assert split.train.targets.tolist() == [0, 1]
    assert split.test.targets.tolist() == [0]
    assert split.test.classes == split.train.classes == ("cat", "dog")
    assert split.train.inputs.shape == (2, 1, 4, 5)
    assert load(tree(tmp_path / "some", PARTS[:2])).test is None


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
@pytest.mark.parametrize("inside", [".", "pets"])
def test_a_tar_is_read_as_its_folder(tmp_path: Path, ending: str, inside: str) -> None:
    folder = tree(tmp_path / "pets", PARTS)
    archive = packed(folder, tmp_path / f"pets{ending}", inside)
    before = sorted(tmp_path.rglob("*"))
    one, other = load(folder), load(archive)
    assert one.test is not None
    assert other.test is not None
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.inputs, other.test.inputs)
    assert other.train.targets.tolist() == one.train.targets.tolist()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
def test_a_damaged_tar_is_refused(tmp_path: Path, ending: str) -> None:
    path = packed(tree(tmp_path / "pets", PARTS), tmp_path / f"pets{ending}")
    good = path.read_bytes()
    for bad in (good[: len(good) // 3], good[: len(good) // 2], b"", b"no tar" * 200):
        path.write_bytes(bad)
        assert f"data file {str(path)!r} cannot be read as a tar archive: " in error_line(path)


def test_a_tar_with_a_broken_header_in_its_middle_is_refused(tmp_path: Path) -> None:
    path = packed(tree(tmp_path / "pets", PARTS), tmp_path / "pets.tar")
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1].offset
    raw = bytearray(path.read_bytes())
    raw[last + 150] ^= 1
    path.write_bytes(raw)
    assert "unexpected end of data or damaged header" in error_line(path)
    path.write_bytes(raw[:last])
    assert "unexpected end of data or damaged header" in error_line(path)


def test_a_wrong_checksum_of_the_compression_is_refused(tmp_path: Path) -> None:
    path = packed(tree(tmp_path / "pets", PARTS), tmp_path / "pets.tar.gz")
    raw = bytearray(path.read_bytes())
    raw[-8] ^= 1
    path.write_bytes(raw)
    assert "CRC" in error_line(path)


def test_links_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    folder = tree(tmp_path / "pets", PLAIN)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "cat" / "._1.png").write_bytes(b"x")
    assert len(load(folder).train) == 3
    with tarfile.open(tmp_path / "pets.tar", "w") as archive:
        archive.add(folder, "./")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("cat/link.png")
            member.type, member.linkname = kind, "../../secret"
            archive.addfile(member)
    assert len(load(tmp_path / "pets.tar").train) == 3


def test_names_that_lead_out_of_the_tar_are_harmless(tmp_path: Path) -> None:
    stream = io.BytesIO()
    picture(0).save(stream, "PNG")
    for name in ("../cat/1.png", "/cat/1.png"):
        with tarfile.open(tmp_path / "pets.tar", "w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(stream.getvalue())
            archive.addfile(member, io.BytesIO(stream.getvalue()))
        before = sorted(tmp_path.parent.rglob("*"))
        if name.startswith("/"):
            assert load(tmp_path / "pets.tar").train.classes == ("cat",)
        else:
            assert "must hold at least one image" in error_line(tmp_path / "pets.tar")
        assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "LA"])
def test_other_colours_become_rgb(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "pets"
    (folder / "cat").mkdir(parents=True)
    ending = "jpg" if mode == "CMYK" else "png"
    transparency = {"transparency": b"\x00\x80"} if mode == "P" else {}
    picture(1, mode).save(folder / "cat" / f"1.{ending}", **transparency)  # type: ignore[arg-type]
    assert load(folder).train.inputs.shape == (1, 3, 4, 5)


def test_images_of_another_size_are_refused_by_name(tmp_path: Path) -> None:
    folder = tree(tmp_path / "pets", PLAIN)
    odd = folder / "dog" / "9.png"
    picture(1, size=(6, 4)).save(odd)
    line = error_line(folder)
    assert f"{str(odd)!r} must be like the first image, 'cat/1.png': 5 x 4 colour pixels" in line
    assert line.endswith("got 6 x 4 colour pixels")
    picture(1, "L").save(odd)
    assert error_line(folder).endswith("got 5 x 4 gray pixels")
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(odd)
    assert "must have 8 bits per channel, got mode I" in error_line(folder)
    for bad in (b"", b"text", (folder / "cat" / "1.png").read_bytes()[:60]):
        odd.write_bytes(bad)
        assert error_line(folder) == f"data file {str(odd)!r} cannot be read as an image"


@pytest.mark.parametrize(
    "names",
    [
        ("1.png",),
        ("train/1.png",),
        ("cat/1.png", "2.png"),
        ("train/cat/1.png", "cat/1.png"),
        ("train/cat/1.png", "val/cat/1.png"),
        ("train/cat/deep/1.png",),
    ],
)
def test_other_trees_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    line = error_line(tree(tmp_path / "pets", names))
    assert "must be in <class>/ or in train/<class>/ and test/<class>/" in line


def test_trees_without_what_is_needed_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert "must hold at least one image" in error_line(tmp_path / "nothing")
    line = error_line(tree(tmp_path / "pets", ("test/cat/1.png",)))
    assert "must hold images in train/, got some in test/ only" in line
