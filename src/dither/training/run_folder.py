"""The folder of a run: its plan, its ledger, its checkpoint, what it leaves behind."""

import json
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither.ledger import FILE, Ledger, new_name
from dither.ledger.checkpoint import load_checkpoint, save_checkpoint
from dither.ledger.entries import now
from dither.ledger.files import write_whole
from dither.training.averaging import Average
from dither.training.private import Private
from dither.validate import InvalidValueError

CHECKPOINT, ABOUT = "checkpoint.safetensors", "run.json"
CANARIES = "canaries.json"
"""What may be in a folder before its run begins: which canaries an audit has put into the data."""

_FORMAT = "dither-run-1"


@dataclass(frozen=True)
class Found:
    """What a run has left behind to go on from: its name, and its checkpoint if it has one."""

    path: Path
    run: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] | None = None


def restore(private: Private, average: Average, found: Found | None) -> None:
    """Go on from a checkpoint, or from the start if the run died before its first."""
    if found is None:
        return
    facts, tensors = found.facts, found.tensors
    if facts is None:
        if private.is_registered(found.run):
            private.load_state_dict({**private.state_dict(), "run": found.run})
        return
    for name, kept, wanted in (
        ("model", facts["shapes"], _shapes(private.model)),
        ("averaging", facts["averaging"], average.name),
        ("optimizer", facts["kind"], type(private.optimizer).__name__),
    ):
        if kept != wanted:
            raise InvalidValueError(f"{name} must be the one of the run in {str(found.path)!r}")
    private.load_state_dict(facts["state"])
    private.model.load_state_dict(_part(tensors, "model."))
    _to_optimizer(private.optimizer, _part(tensors, "optimizer."), facts["optimizer"])
    average.go_on(_part(tensors, "average."))


class RunFolder:
    """Where a run is kept, so that it can go on after a crash.

    Args:
        path: the folder.
        resume: whether a run that is there goes on; else the folder must be new or empty.
        ledger: the ledger, or None for one in the folder.
        derived_from_private_data: what was read off the private data and is taken as public.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool,
        ledger: str | Path | None,
        derived_from_private_data: Sequence[str] = (),
    ) -> None:
        self.path = checked_folder(path, resume=resume)
        self._ledger = None if ledger is None else str(Path(ledger).resolve())
        self._is_new, self._derived_from_private_data = False, list(derived_from_private_data)
        self.run: str = self._about()["run"] if self.has_begun else new_name()

    @property
    def derived_from_private_data(self) -> tuple[str, ...]:
        """What was read off the private data, in this session or before."""
        return tuple(
            self._about().get("derived_from_private_data", self._derived_from_private_data)
        )

    @property
    def has_begun(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.path / ABOUT).exists()

    def begin(self, plan: str) -> Ledger:
        """Make the folder if need be, write the plan, and return the ledger."""
        self._is_new = not self.path.exists() or {each.name for each in self.path.iterdir()} == {
            CANARIES
        }
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_begun:
            about = self._about()
            found = about["ledger"]
            if about["folder"] != self.path.stat().st_ino:
                warnings.warn(
                    f"{str(self.path)!r} is a copy of the folder that the run began in: every copy "
                    "spends by itself, and its ledger does not know of the others",
                    stacklevel=6,
                )
            if found != self._ledger:
                raise InvalidValueError(
                    f"ledger must be the one that the run began with, {found or FILE!r}, got "
                    f"{self._ledger or FILE!r}"
                )
            about["sessions"] = [*about.get("sessions", []), _session()]
            if "derived_from_private_data" in about:  # else nobody knows what was
                about["derived_from_private_data"] = [
                    *dict.fromkeys(
                        [*about["derived_from_private_data"], *self._derived_from_private_data]
                    )
                ]
            self.write(ABOUT, json.dumps(about))
        else:
            if any((self.path / name).exists() for name in (CHECKPOINT, FILE)):
                raise InvalidValueError(
                    f"run_dir must have its {ABOUT}, but {str(self.path)!r} has lost it: what the "
                    "run has spent is in its ledger"
                )
            self.write("plan.json", plan)
            # Before the run is registered: a run that dies in between goes on by this name.
            about = {
                "format": _FORMAT,
                "run": self.run,
                "ledger": self._ledger,
                "folder": self.path.stat().st_ino,
                "derived_from_private_data": self._derived_from_private_data,
                "sessions": [_session()],
            }
            self.write(ABOUT, json.dumps(about))
            return Ledger(self._place)
        return Ledger(self._place, create=False)

    @property
    def _place(self) -> Path:
        return self.path / FILE if self._ledger is None else Path(self._ledger)

    def save(self, private: Private, average: Average) -> None:
        """Write a checkpoint."""
        tensors = {f"model.{name}": each for name, each in private.model.state_dict().items()}
        kept, numbers = _of_optimizer(private.optimizer)
        facts = {
            "state": private.state_dict(),
            "optimizer": numbers,
            "shapes": _shapes(private.model),
            "averaging": average.name,
            "kind": type(private.optimizer).__name__,
        }
        held = {f"average.{name}": each for name, each in average.mean.items()}
        save_checkpoint(self.path / CHECKPOINT, {**tensors, **kept, **held}, facts)

    def found(self) -> Found | None:
        """Return what there is to go on from; None in a folder where no run has begun."""
        if not self.has_begun:
            return None
        checkpoint = self.path / CHECKPOINT
        if not checkpoint.exists():
            return Found(self.path, self.run)
        return Found(self.path, self.run, *load_checkpoint(checkpoint))

    @contextmanager
    def clearing(self, private: Private) -> Iterator[None]:
        """Leave nothing of a run behind that was refused before anything was released."""
        try:
            yield
        except Exception:  # whatever it was, it is raised again
            if self._is_new and private.step == 0:
                private.close()
                mine = ("plan.json", ABOUT, CHECKPOINT, CANARIES)
                own = (FILE, f"{FILE}.mark", f"{FILE}-wal", f"{FILE}-shm")
                for name in (*mine, *(own if self._ledger is None else ())):
                    (self.path / name).unlink(missing_ok=True)
                with suppress(OSError):  # others may have put something there
                    self.path.rmdir()
            raise

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder, whole or not at all."""
        write_whole(self.path / name, text.encode())

    def save_model(self, model: nn.Module) -> None:
        """Write the trained model."""
        save_checkpoint(self.path / "model.safetensors", model.state_dict(), {})

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads((self.path / ABOUT).read_text(encoding="utf-8"))
        if about.get("format") != _FORMAT:
            raise InvalidValueError(f"run_dir must be the folder of a run, got {str(self.path)!r}")
        return about


def checked_folder(path: str | Path, *, resume: bool) -> Path:
    """Return the folder of a run, if it is new or empty, or one to go on with."""
    folder = Path(path)
    taken = folder.is_file() or (
        folder.is_dir() and any(each.name != CANARIES for each in folder.iterdir())
    )
    if taken and not (resume and (folder / "plan.json").exists()):
        raise InvalidValueError(
            f"run_dir must be a folder that is new or empty{_otherwise(resume)}, "
            f"got {str(folder)!r}"
        )
    return folder


def _otherwise(resume: bool) -> str:
    return ", or of a run with its plan.json" if resume else ", or resume=True goes on with a run"


def _session() -> dict[str, Any]:
    """Return when a run begins or goes on, and with which versions."""
    used = {name: version(name) for name in ("dither", "torch", "numpy", "scipy", "cryptography")}
    return {"time": now(), "versions": {"python": platform.python_version(), **used}}


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(each.shape) for name, each in model.state_dict().items()}


def _part(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: each for name, each in tensors.items() if name.startswith(start)}


def _of_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state, and its numbers."""
    kept: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                kept[f"optimizer.{index}.{key}"] = value
            else:
                numbers[f"{index}.{key}"] = value
    return kept, numbers


def _to_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Give an optimizer its state back; its settings are those that it was made with."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    with torch.no_grad():
        optimizer.load_state_dict({"state": state, "param_groups": groups})
