"""What a run keeps on disk: its directory with plan, ledger, checkpoint and results."""

import copy
import json
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither import validate
from dither.ledger import Ledger
from dither.ledger.entries import new_name, now
from dither.ledger.files import load_checkpoint, save_checkpoint, write_atomic
from dither.ledger.ledger import FILE, ledger_file
from dither.planning import Plan
from dither.training.averaging import Average
from dither.training.private import Private
from dither.training.recipe import Recipe
from dither.validate import InvalidValueError

CHECKPOINT, ABOUT, RESULT = "checkpoint.safetensors", "run.json", "result.json"
PLAN, RECIPE = "plan.json", "recipe.json"
MODEL, SCHEMA, EVALUATION = "model.json", "schema.json", "evaluation.json"
CANARIES = "canaries.json"
"""The canaries that an audit has put into the data; may be there before the run begins."""

REACTIVE_PLAN = "dither-reactive-plan-1"
"""Format of plan.json for plans with reactive step sizes, which are described and not loaded."""

_FORMAT = "dither-run-1"


@dataclass(frozen=True)
class Run:
    """What `train` keeps on disk: a run directory, a ledger, or both.

    Args:
        directory: a new or empty directory for plan.json, recipe.json, checkpoints, history.jsonl,
            result.json, model.safetensors and the ledger; None keeps no files but the ledger's.
        resume: continue the run in ``directory``, if there is one. Steps that were spent and lost
            stay spent, and the noise of the remaining steps is planned again.
        ledger: a `dither.ledger.Ledger` or its path, shared with other runs on the same data; None
            keeps a ledger in ``directory``.
        part: (split, part) if the data is one part of a random split and the ledger is the one in
            ``directory``; for another ledger pass ``ledger.part(split, part)``, which see.
        checkpoint_every: steps between two checkpoints, rounded up to whole cycles where noise is
            correlated, since a resumed run has paid for them; the last step always writes one.
        derived_from_private_data: values that the caller computed from the private data and treats
            as public, such as "the set of classes"; the report lists them.
        data: name of the data, such as its file name; the report says it.
        purpose: what the model is for; the report says it.
        is_counted: whether the public number of records was counted in the data; a recipe knows.

    Example:
        >>> import tempfile, dither, torch
        >>> plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=50, batch_size=10, steps=3)
        >>> data = torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)
        >>> run = Run(tempfile.mkdtemp() + "/run1")
        >>> result = dither.train(torch.nn.Linear(3, 2), data, plan, run=run, progress=False)
        >>> sorted(path.name for path in Path(run.directory).glob("*.json"))
        ['plan.json', 'result.json', 'run.json']
    """

    directory: str | Path | None = None
    _: KW_ONLY
    resume: bool = False
    ledger: Ledger | str | Path | None = None
    part: tuple[str, str] | None = None
    checkpoint_every: int = 50
    derived_from_private_data: Sequence[str] = ()
    data: str = ""
    purpose: str = ""
    is_counted: bool = False

    def __post_init__(self) -> None:
        validate.count(checkpoint_every=self.checkpoint_every)
        validate.instance(str, data=self.data)
        validate.instance(str, purpose=self.purpose)
        derived = self.derived_from_private_data
        if isinstance(derived, str) or not all(isinstance(value, str) for value in derived):
            raise validate.InvalidTypeError(
                f"derived_from_private_data must be a sequence of strings, got {derived!r}"
            )
        object.__setattr__(self, "derived_from_private_data", tuple(derived))
        if self.resume and self.directory is None:
            raise InvalidValueError("resume=True needs the run directory, got directory=None")
        if self.part is not None and (self.directory is None or self.ledger is not None):
            raise InvalidValueError(
                f"part must be None unless the ledger is the one in directory, got {self.part!r}: "
                "pass ledger=ledger.part(split, part)"
            )


@dataclass(frozen=True)
class SavedRun:
    """A run to resume: its name in the ledger, and its checkpoint if it has one."""

    path: Path
    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] | None = None


def restore(private: Private, average: Average, saved: SavedRun | None) -> None:
    """Continue from a checkpoint, or from the start if the run died before its first."""
    if saved is None:
        return
    facts, tensors = saved.facts, saved.tensors
    if facts is None:
        if private.is_registered(saved.name):
            private.load_state_dict({**private.state_dict(), "run": saved.name})
        return
    for name, value, expected in (
        ("model", _shapes(private.model), facts["shapes"]),
        ("averaging", average.name, facts["averaging"]),
        ("optimizer", type(private.optimizer).__name__, facts["kind"]),
    ):
        if value != expected:
            raise InvalidValueError(f"{name} must be the one of the run in {str(saved.path)!r}")
    private.load_state_dict(facts["state"])
    private.model.load_state_dict(_part(tensors, "model."))
    _load_optimizer(private.optimizer, _part(tensors, "optimizer."), facts["optimizer"])
    average.resume(_part(tensors, "average."))


class RunDirectory:
    """The directory of a run, from which it can be resumed after a crash."""

    def __init__(self, run: Run, path: str | Path) -> None:
        self.path = check_directory(path, resume=run.resume)
        ledger, self._part = run.ledger, run.part
        self._handle: Ledger | None = None
        if isinstance(ledger, Ledger):
            self._handle, self._part, ledger = ledger, ledger.split_part, ledger.path
        self._ledger = None if ledger is None else str(ledger_file(ledger).resolve())
        self._derived = tuple(run.derived_from_private_data)
        self._described = {
            "data": run.data, "purpose": run.purpose, "is_counted": run.is_counted
        }  # fmt: skip
        self._is_new = not self.path.exists() or _names(self.path) == {CANARIES}
        self.run: str = self._about()["run"] if self.has_begun else new_name()

    @property
    def derived_from_private_data(self) -> tuple[str, ...]:
        """What was derived from the private data, in this session or before."""
        return tuple(self._about().get("derived_from_private_data", self._derived))

    @property
    def has_begun(self) -> bool:
        """Whether there is a run to resume."""
        return (self.path / ABOUT).exists()

    def begin(self, plan: str, recipe: Recipe | None) -> Ledger:
        """Write the plan, its recipe and what is known of the run, and return the ledger."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_begun:
            if self._about()["run"] != self.run:
                raise InvalidValueError(
                    f"run directory must be new or empty, but another process has begun a run in "
                    f"{str(self.path)!r}"
                )
            self._resume()
            ledger = self._open(create=False)
            if self.run not in ledger.runs:  # it died before: the plan is the one of this session
                self._write_plan(plan, recipe)
            return ledger
        if any((self.path / name).exists() for name in (CHECKPOINT, FILE)):
            raise InvalidValueError(
                f"run directory must have its {ABOUT}, but {str(self.path)!r} has lost it: what "
                "the run has spent is in its ledger"
            )
        self._write_plan(plan, recipe)
        # Before the run is registered: a run that dies in between is resumed by this name.
        about = {
            "format": _FORMAT,
            "run": self.run,
            "ledger": self._ledger,
            "inode": self.path.stat().st_ino,
            "derived_from_private_data": self._derived,
            "sessions": [_session()],
            **{name: value for name, value in self._described.items() if value},
        }
        self.write(ABOUT, json.dumps(about))
        return self._open(create=True)

    def _open(self, *, create: bool) -> Ledger:
        ledger = copy.copy(self._handle) or Ledger(self._ledger_path, create=create)
        ledger = ledger.conditional() if self.derived_from_private_data else ledger
        return ledger if self._part is None else ledger.part(*self._part)

    def _write_plan(self, plan: str, recipe: Recipe | None) -> None:
        self.write(PLAN, plan)
        if recipe is None:
            (self.path / RECIPE).unlink(missing_ok=True)
        else:
            self.write(RECIPE, recipe.to_json())

    def _resume(self) -> None:
        about, key = self._about(), "derived_from_private_data"
        if about["inode"] != self.path.stat().st_ino:
            warnings.warn(
                f"{str(self.path)!r} is a copy of the directory that the run began in: what other "
                "copies spend is not in its ledger",
                stacklevel=7,
            )
        if about["ledger"] != self._ledger:
            raise InvalidValueError(
                f"ledger must be the one that the run began with, {about['ledger'] or FILE!r}, got "
                f"{self._ledger or FILE!r}"
            )
        about["sessions"] = [*about.get("sessions", []), _session()]
        if key in about:  # else it is unknown
            about[key] = [*dict.fromkeys([*about[key], *self._derived])]
        self.write(ABOUT, json.dumps(about))

    @property
    def _ledger_path(self) -> Path:
        return self.path / FILE if self._ledger is None else Path(self._ledger)

    def save(self, private: Private, average: Average) -> None:
        """Write a checkpoint."""
        tensors = {f"model.{name}": each for name, each in private.model.state_dict().items()}
        optimizer_tensors, numbers = _optimizer_state(private.optimizer)
        facts = {
            "state": private.state_dict(),
            "optimizer": numbers,
            "shapes": _shapes(private.model),
            "averaging": average.name,
            "kind": type(private.optimizer).__name__,
        }
        means = {f"average.{name}": each for name, each in average.mean.items()}
        save_checkpoint(self.path / CHECKPOINT, {**tensors, **optimizer_tensors, **means}, facts)

    def load(self) -> SavedRun | None:
        """Return the run to resume; None in a directory where no run has begun."""
        if not self.has_begun:
            return None
        checkpoint = self.path / CHECKPOINT
        if not checkpoint.exists():
            return SavedRun(self.path, self.run)
        return SavedRun(self.path, self.run, *load_checkpoint(checkpoint))

    def load_recipe(self) -> Recipe | None:
        """Return the recipe of the run to resume, if it began with one."""
        file = self.path / RECIPE
        if not self.has_begun or not file.exists():
            return None
        return Recipe.from_json(file.read_text(encoding="utf-8"))

    def load_plan(self) -> Plan | None:
        """Return the plan of the run to resume; None if it has none that is fixed in advance."""
        if not self.has_begun:
            return None
        text = (self.path / PLAN).read_text(encoding="utf-8")
        is_fixed = json.loads(text).get("format") != REACTIVE_PLAN
        return Plan.from_json(text) if is_fixed else None

    @contextmanager
    def cleanup(self, private: Private) -> Iterator[None]:
        """Remove the directory again if the run fails before anything was released."""
        try:
            yield
        except Exception:  # raised again
            if self._is_new and private.step == 0:
                private.close()
                mine = (PLAN, RECIPE, ABOUT, CHECKPOINT, CANARIES)
                own = (FILE, f"{FILE}.mark", f"{FILE}-wal", f"{FILE}-shm")
                for name in (*mine, *(own if self._ledger is None else ())):
                    (self.path / name).unlink(missing_ok=True)
                with suppress(OSError):  # other files may be there
                    self.path.rmdir()
            raise

    def write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        write_atomic(self.path / name, text.encode())

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads((self.path / ABOUT).read_text(encoding="utf-8"))
        if about.get("format") != _FORMAT:
            raise InvalidValueError(
                f"run directory must have a {ABOUT} of {_FORMAT}, got {str(self.path)!r}"
            )
        return about


def check_directory(path: str | Path, *, resume: bool) -> Path:
    """Return a run directory, if it is new or empty, or has a run to resume."""
    directory = Path(path)
    if is_taken(directory) and not (resume and (directory / PLAN).exists()):
        also = (
            f"and it has no {PLAN} to resume from"
            if resume
            else "--resume continues it (in Python resume=True)"
        )
        raise InvalidValueError(
            f"run directory must be new or empty, got {str(directory)!r}: {also}"
        )
    return directory


def is_taken(directory: Path) -> bool:
    """Return whether no run can begin there: it is a file, or has files."""
    return directory.is_file() or (directory.is_dir() and bool(_names(directory) - {CANARIES}))


def _names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def _session() -> dict[str, Any]:
    """Return when a run begins or is resumed, and with which versions."""
    used = {name: version(name) for name in ("dither", "torch", "numpy", "scipy", "cryptography")}
    return {"time": now(), "versions": {"python": platform.python_version(), **used}}


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(each.shape) for name, each in model.state_dict().items()}


def _part(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: each for name, each in tensors.items() if name.startswith(start)}


def _optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state, and its numbers."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers[f"{index}.{key}"] = value
    return tensors, numbers


def _load_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Restore the state of an optimizer; its settings stay as they are."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    with torch.no_grad():
        optimizer.load_state_dict({"state": state, "param_groups": groups})
