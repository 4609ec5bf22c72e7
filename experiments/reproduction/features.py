"""Scattering features: fixed wavelets that no data was used for, computed once and cached.

CIFAR-100, on which the paper pre-trains its convolutions, is not available everywhere, and features
learned from data would have to be accounted for. The scattering transform (two layers of Morlet
wavelets and moduli, averaged over 4 × 4 pixels) needs neither. Each image's features are normalized
in groups of channels and scaled to length 1 by themselves, so that no statistic of the data enters.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor

from dither.data import Examples, Split, load
from dither.validate import InvalidValueError

CACHE_VARIABLE = "DITHER_CACHE"
_SCALE, _CHUNK = 2, 250
_GROUPS = 27
"""Of channels that are normalized together."""
_SEED = 20_210_601
"""Of the projection, and of the order of shuffled rows."""


@dataclass(frozen=True)
class FeatureSet:
    """Which features: everything that decides their values.

    Attributes:
        dataset: a name that `dither.data.load` knows.
        images: how many training images, a random choice of them; None is all. The test images
            are cut to a fifth as many.
        dimension: of a random projection; None keeps all features.
        frequency: makes cosines of the projection, at random phases: a linear model on them is one
            with the kernel exp(−(frequency·‖x − y‖)²/2) on the features (Rahimi and Recht 2007),
            here smoothed in space and together with those of cells twice as wide.
        length: of every row.
        mirrored: whether the features of the mirror image are added: what is seen the same way from
            both sides is then the same row.
        shuffled: whether the rows are in a random order, so that any part is as good as another.
    """

    dataset: str
    _: KW_ONLY
    images: int | None = None
    dimension: int | None = None
    frequency: float | None = None
    length: float = 1.0
    mirrored: bool = False
    shuffled: bool = False


@dataclass(frozen=True)
class Features:
    """Rows of one length and their classes, for training and for testing."""

    train: Tensor
    train_targets: Tensor
    test: Tensor
    test_targets: Tensor


def prepare(wanted: FeatureSet, bar: Progress) -> None:
    """Compute the features unless they are in the cache, and show the progress.

    The cache is used only if it was computed from the same images.
    """
    with _task(bar, f"reading {wanted.dataset}", 1):
        split = _images(wanted.dataset)
    if split.test is None:
        raise InvalidValueError(f"{wanted.dataset} must have test images, got none")
    directory = _directory(wanted)
    directory.mkdir(parents=True, exist_ok=True)
    for part, examples, count in (
        ("train", split.train, wanted.images),
        ("test", split.test, None if wanted.images is None else wanted.images // 5),
    ):
        chosen = _choose(examples, count)
        fingerprint, stored = _fingerprint(chosen), directory / f"{part}.sha256"
        is_complete = _is_complete(directory / f"{part}-classes.npy")
        if not is_complete or not stored.exists() or stored.read_text() != fingerprint:
            stored.unlink(missing_ok=True)
            for old in directory.glob(f"{part}-*.npy"):
                old.unlink()
            _write(directory / f"{part}-classes.npy", chosen.targets.numpy())
            stored.write_text(fingerprint)
        for path, images in _sources(wanted, part, chosen.inputs).items():
            if not _is_complete(path):
                with _task(bar, f"{wanted.dataset} {part} features", len(images)) as done:
                    _write(path, _scatter(images, done))
        if wanted.dimension is not None and not _is_complete(_path(wanted, part)):
            title = f"{wanted.dataset} {part} projection"
            with _task(bar, title, len(chosen)) as done:
                _write(_path(wanted, part), _project(wanted, part, done))


@lru_cache(maxsize=1)
def features(wanted: FeatureSet) -> Features:
    """Return prepared features; the last ones are kept in memory."""
    read: list[Tensor] = []
    for part in ("train", "test"):
        rows = torch.from_numpy(
            np.concatenate(list(_normalize(wanted, part)))
            if wanted.dimension is None
            else np.load(_path(wanted, part))
        )
        classes = torch.from_numpy(np.load(_directory(wanted) / f"{part}-classes.npy"))
        if wanted.shuffled:
            order = torch.from_numpy(np.random.default_rng(_SEED).permutation(len(rows)))
            rows, classes = rows[order], classes[order]
        read += [rows.mul_(wanted.length), classes]
    return Features(*read)


@lru_cache(maxsize=1)
def _images(dataset: str) -> Split:
    return load(dataset)


def cache() -> Path:
    """Return where features are cached: $DITHER_CACHE, else the user's cache directory."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dither"


def _directory(wanted: FeatureSet) -> Path:
    size = "all" if wanted.images is None else str(wanted.images)
    return cache() / "scattering" / f"{wanted.dataset}-{size}"


def _path(wanted: FeatureSet, part: str) -> Path:
    kinds = ["mirrored"] if wanted.mirrored else []
    if wanted.frequency is not None:
        kinds.append(f"two-scales-cosines-{wanted.frequency!r}")
    return _directory(wanted) / f"{'-'.join([part, str(wanted.dimension), *kinds])}.npy"


def _choose(examples: Examples, count: int | None) -> Examples:
    if count is None or count >= len(examples):
        return examples
    kept = torch.from_numpy(np.random.default_rng(0).permutation(len(examples))[:count])
    return Examples(examples.inputs[kept], examples.targets[kept], examples.classes)


def _fingerprint(examples: Examples) -> str:
    hashed = hashlib.sha256(f"J={_SCALE} {tuple(examples.inputs.shape)}".encode())
    hashed.update(examples.inputs.contiguous().numpy().data)
    hashed.update(examples.targets.contiguous().numpy().data)
    return hashed.hexdigest()


@contextmanager
def _task(bar: Progress, title: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show a task while it lasts; yield a function that updates the number of rows done."""
    task = bar.add_task(title, total=rows, done=0, all=rows)
    try:
        yield lambda done: bar.update(task, completed=done, done=done)
    finally:
        bar.remove_task(task)


def _scatter(images: Tensor, done: Callable[[int], None]) -> NDArray[np.float16]:
    """Return images × channels × height × width."""
    transform, chunks = _transform(*images.shape[-2:]), []
    for chunk in images.float().split(_CHUNK):
        channels = transform(chunk.contiguous()).flatten(1, -3)
        chunks.append(channels.numpy().astype(np.float16))
        done(sum(map(len, chunks)))
    return np.concatenate(chunks)


@lru_cache(maxsize=2)
def _transform(height: int, width: int) -> Any:
    # kymatio's own torch module imports a name that SciPy has removed; this one does not.
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    return ScatteringTorch2D(J=_SCALE, shape=(height, width))


def _sources(wanted: FeatureSet, part: str, images: Tensor) -> dict[Path, Tensor]:
    """Return the images whose features are wanted, by the files that keep those."""
    sources = {_directory(wanted) / f"{part}-all.npy": images}
    if wanted.mirrored:
        sources[_directory(wanted) / f"{part}-mirrored.npy"] = images.flip(-1)
    return sources


def _normalize(wanted: FeatureSet, part: str) -> Iterator[Tensor]:
    """Yield rows of length 1, some at a time."""
    files = [_directory(wanted) / f"{part}-all.npy"]
    if wanted.mirrored:
        files.append(_directory(wanted) / f"{part}-mirrored.npy")
    sources = [np.load(file, mmap_mode="r") for file in files]
    for start in range(0, len(sources[0]), _CHUNK):
        chunks = [torch.from_numpy(s[start : start + _CHUNK].astype(np.float32)) for s in sources]
        rows = sum(_rows(chunk, at_two_scales=wanted.frequency is not None) for chunk in chunks)
        yield torch.nn.functional.normalize(torch.as_tensor(rows), dim=1)


def _rows(channels: Tensor, *, at_two_scales: bool) -> Tensor:
    """Return normalized channels as rows: of all cells, or smoothed beside those of 2 × 2 cells."""
    functional = torch.nn.functional
    fine = functional.group_norm(channels, _GROUPS)
    if not at_two_scales:
        return fine.flatten(1)
    coarse = functional.group_norm(functional.avg_pool2d(channels, 2), _GROUPS).flatten(1)
    fine = _smooth(fine).flatten(1)
    return torch.cat([fine, coarse * math.sqrt(fine.shape[1] / coarse.shape[1])], dim=1)


def _smooth(channels: Tensor) -> Tensor:
    """Return means of a cell and its neighbours with the weights 1, 2, 1 along both directions."""
    weights = torch.tensor([0.25, 0.5, 0.25])
    n, c, h, w = channels.shape
    padded = torch.nn.functional.pad(channels, (1, 1, 1, 1), mode="replicate")
    kernel = torch.outer(weights, weights)[None, None]
    return torch.nn.functional.conv2d(padded.reshape(n * c, 1, h + 2, w + 2), kernel).view(
        n, c, h, w
    )


def _project(wanted: FeatureSet, part: str, done: Callable[[int], None]) -> NDArray[np.float32]:
    """Return the features after a random projection, or its cosines, again of length 1."""
    random, dimension = np.random.default_rng(_SEED), wanted.dimension or 0
    projection, chunks = None, []
    for rows in _normalize(wanted, part):
        if projection is None:
            normals = random.standard_normal((rows.shape[1], dimension), np.float32)
            projection = torch.from_numpy(normals)
            phases = torch.from_numpy(random.uniform(0.0, 2.0 * np.pi, dimension)).float()
        projected = rows @ projection
        if wanted.frequency is not None:
            projected = projected.mul_(wanted.frequency).add_(phases).cos_()
        chunks.append(torch.nn.functional.normalize(projected, dim=1).numpy())
        done(sum(map(len, chunks)))
    return np.concatenate(chunks)


def _is_complete(path: Path) -> bool:
    """Return whether a file exists and is complete."""
    try:
        np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return True


def _write(path: Path, values: NDArray[np.generic]) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    with unfinished.open("wb") as file:
        np.save(file, values)
    unfinished.replace(path)
