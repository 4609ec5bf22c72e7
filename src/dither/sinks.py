"""Where the numbers of a run go besides its history: JSON lines, TensorBoard, MLflow, W&B.

A sink gets released and public numbers only: ε so far, step size and noise multiplier of a step,
and metrics on data that is declared public. No loss, norm or share of clipped gradients of the
private records reaches it.

A sink opens what it writes to when its first numbers come. JSON lines and TensorBoard then replace
what is there from that step on, so that a run that is resumed or repeated is there once.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from dither import validate

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["JsonlSink", "MLflowSink", "Sink", "TensorBoardSink", "WandbSink"]


@runtime_checkable
class Sink(Protocol):
    """What takes the numbers of a run: any object with these two methods.

    Example:
        >>> class Printed:
        ...     def log(self, step, numbers):
        ...         print(step, sorted(numbers))
        ...
        ...     def close(self):
        ...         pass
        >>> isinstance(Printed(), Sink)
        True
    """

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers after a step."""

    def close(self) -> None:
        """Write what is left: the run has ended."""


@final
class JsonlSink:
    r"""One JSON object per line, with the step and the numbers; an infinite ε is null.

    Args:
        path: the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> sink = JsonlSink(path)
        >>> sink.log(20, {"epsilon": 0.5})
        >>> path.read_text()
        '{"step": 20, "epsilon": 0.5}\n'
    """

    def __init__(self, path: str | Path) -> None:
        self._path = validate.output_file(path=path)
        self._is_open = False

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append a line."""
        if not self._is_open:
            self._drop_from(step)
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": step, **finite}) + "\n")

    def close(self) -> None:
        """Begin anew with the next number."""
        self._is_open = False

    def _drop_from(self, step: int) -> None:
        """Leave out lines from a step on, and a last one that was cut off."""
        self._is_open = True
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = (line for line in lines if line.endswith("}\n"))
            kept = "".join(line for line in whole if json.loads(line)["step"] < step)
            self._path.write_text(kept, encoding="utf-8")


@final
class TensorBoardSink:
    """Scalars for TensorBoard; needs the package tensorboard.

    Args:
        directory: where the event files are, one directory per run.

    Example:
        >>> sinks = [TensorBoardSink("logs/run1")]  # for dither.train(..., sinks=sinks)
    """

    def __init__(self, directory: str | Path) -> None:
        _check_installed("tensorboard", "TensorBoardSink", "tensorboard")
        self._directory = str(directory)
        self._writer: SummaryWriter | None = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add a scalar for every number, and write it."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._directory, purge_step=step)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@final
class MLflowSink:
    """Metrics of a run of MLflow; needs the package mlflow, or mlflow-skinny.

    Args:
        experiment: the name of the experiment, which is made if there is none.
        run_name: the name of the run; None lets MLflow choose.
        run_id: the run to continue; None makes one.
        tracking_uri: where MLflow keeps its runs; None is what MLflow has set.

    Attributes:
        run_id: of the run, once there is one.

    Example:
        >>> sink = MLflowSink("patients", run_name="first")  # MLflow is not called yet
        >>> sink.run_id is None
        True
    """

    def __init__(
        self,
        experiment: str,
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        _check_installed("mlflow", "MLflowSink", "mlflow")
        self.run_id = run_id
        self._experiment, self._run_name, self._uri = experiment, run_name, tracking_uri
        self._client: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log a batch of metrics."""
        from mlflow.entities import Metric

        if self._client is None:
            self._open()
        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self.run_id, metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        if self._client is not None:
            self._client.set_terminated(self.run_id)
            self._client = None

    def _open(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(self._uri)
        if self.run_id is not None:
            client.update_run(self.run_id, status="RUNNING")
            return
        found = client.get_experiment_by_name(self._experiment)
        place = client.create_experiment(self._experiment) if found is None else found.experiment_id
        self.run_id = client.create_run(place, run_name=self._run_name).info.run_id


@final
class WandbSink:
    """A run of Weights & Biases, offline unless ``mode="online"``; needs the package wandb.

    What the program prints, its code and measurements of the machine are not collected.

    Args:
        project: the project.
        **settings: of ``wandb.init``, as ``dir=``, ``name=``, or ``id=`` with ``resume="allow"`` to
            continue a run.

    Example:
        >>> sinks = [WandbSink("patients", name="first")]  # for dither.train(..., sinks=sinks)
    """

    def __init__(self, project: str, **settings: Any) -> None:
        _check_installed("wandb", "WandbSink", "wandb")
        self._settings = {"project": project, "mode": "offline", **settings}
        self._run: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers."""
        if self._run is None:
            import wandb

            numbers_only = wandb.Settings(
                console="off", silent=True, save_code=False, x_disable_meta=True,
                x_disable_stats=True,
            )  # fmt: skip
            self._run = wandb.init(**{"settings": numbers_only, **self._settings})
        self._run.log({**numbers}, step=step)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


@final
class Sinks:
    """Several sinks as one; a sink that fails gets no more, and the run goes on.

    A step is charged and taken before its numbers come here: a run that ended for a full disk or a
    lost connection would have spent its budget for nothing.

    Args:
        sinks: as a caller of `dither.train` gives them.
        is_used: False checks them only, as on all ranks but the first.
    """

    def __init__(self, sinks: Sequence[Sink], *, is_used: bool = True) -> None:
        for sink in sinks:
            if not isinstance(sink, Sink):
                raise validate.InvalidTypeError(
                    "sinks must be a list of objects with log(step, numbers) and close(), got "
                    f"{type(sink).__name__} in it"
                )
        self._sinks = [*sinks] if is_used else []

    def __len__(self) -> int:
        return len(self._sinks)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers after a step to all sinks."""
        for sink in [*self._sinks]:
            try:
                sink.log(step, numbers)
            except Exception as problem:  # noqa: BLE001 - a logger can raise anything
                self._drop(sink, f"at step {step}", problem)

    def close(self) -> None:
        """Close all sinks."""
        for sink in [*self._sinks]:
            try:
                sink.close()
            except Exception as problem:  # noqa: BLE001 - a logger can raise anything
                self._drop(sink, "when it was closed", problem)

    def _drop(self, sink: Sink, when: str, problem: Exception) -> None:
        self._sinks.remove(sink)
        validate.warn(
            f"{type(sink).__name__} failed {when} and gets no more numbers; the run goes on: "
            f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        )


def _check_installed(module: str, name: str, package: str) -> None:
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"{name} needs {package}: pip install {package}")
