"""What sinks receive of a run: the history, and nothing that is private."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.loops import data, flat, model, noisy_plan, private, quiet_plan, take_steps

import dither
from dither.sinks import JsonlSink, MLflowSink, Sink, Sinks, TensorBoardSink, WandbSink
from dither.training import Public, Row, Run, TrainResult

STEP_NAMES = {"epsilon", "stepsize", "noise_multiplier"}
PUBLIC_NAMES = {"public/accuracy", "public/loss"}
Numbers = list[tuple[int, dict[str, float]]]


class Kept:
    """A sink that keeps what it receives."""

    def __init__(self) -> None:
        self.rows: Numbers = []
        self.closed = 0

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((step, {**numbers}))

    def close(self) -> None:
        self.closed += 1


class Failing(Kept):
    """A sink that fails from a step on, or when it is closed."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step >= self._step:
            raise ConnectionError("no\nserver")
        super().log(step, numbers)

    def close(self) -> None:
        raise OSError("disk is full")


def trained(*sinks: Sink, steps: int = 6, **settings: Any) -> TrainResult:
    public = Public(data(30))
    given = {"seed": 7, "every": 2, "progress": False, "evaluate": public, **settings}
    return dither.train(model(), data(), noisy_plan(steps), sinks=sinks, **given)


def rows_of(history: tuple[Row, ...]) -> Numbers:
    """Return what sinks shall receive of a history, spelled out."""
    return [
        (
            row.step,
            {
                "epsilon": row.epsilon,
                "stepsize": row.stepsize,
                "noise_multiplier": row.noise_multiplier,
                **{f"public/{name}": value for name, value in row.metrics.items()},
                **{f"public/iterate_{name}": value for name, value in row.iterate_metrics.items()},
            },
        )
        for row in history
    ]


def lines_of(path: Path) -> Numbers:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row.pop("step"), row) for row in rows]


def test_a_sink_receives_the_history() -> None:
    kept = Kept()
    result = trained(kept, averaging="ema")
    assert kept.rows == rows_of(result.history)
    assert [step for step, _ in kept.rows] == [2, 4, 6]
    assert kept.closed == 1


def test_nothing_else_is_there() -> None:
    kept = Kept()
    trained(kept)
    assert {*kept.rows[-1][1]} == STEP_NAMES | PUBLIC_NAMES
    # Other private records: only the public metrics, which the released model gives, may differ.
    other, (inputs, targets) = Kept(), data()
    given: dict[str, Any] = {"seed": 7, "every": 2, "progress": False, "sinks": [other]}
    dither.train(model(), (inputs + 1.0, targets), noisy_plan(), evaluate=None, **given)
    public = [{name: row[name] for name in STEP_NAMES} for _, row in kept.rows]
    assert [row for _, row in other.rows] == public


def test_sinks_change_nothing_of_the_run() -> None:
    assert torch.equal(flat(trained(Kept()).model), flat(trained().model))


def test_a_loop_of_ones_own_logs_every_step_after_the_optimizer_has_taken_it() -> None:
    run: dither.training.Private
    seen: list[torch.Tensor] = []

    class Watching(Kept):
        def log(self, step: int, numbers: Mapping[str, float]) -> None:
            super().log(step, numbers)
            seen.append(flat(run.model))

    kept = Watching()
    run = private(noisy_plan(4), sinks=[kept])
    before = flat(run.model)
    after = take_steps(run)
    assert [step for step, _ in kept.rows] == [1, 2, 3, 4]
    assert all({*numbers} == STEP_NAMES for _, numbers in kept.rows)
    spent = [numbers["epsilon"] for _, numbers in kept.rows]
    assert spent == sorted(spent)
    assert spent[-1] == run.spent().epsilon
    assert not torch.equal(seen[0], before)
    assert torch.equal(seen[-1], after)
    assert kept.closed == 0
    run.close()
    assert kept.closed == 1


@pytest.mark.filterwarnings("default")
def test_a_sink_that_fails_loses_no_step(tmp_path: Path) -> None:
    expected = trained().model
    failing, kept = Failing(4), Kept()
    with pytest.warns(UserWarning, match="Failing failed at step 4 and gets no more numbers") as w:
        result = trained(failing, kept, run=Run(tmp_path / "run"))
    assert len(w) == 1  # it is not closed, either
    assert str(w[0].message).endswith("the run goes on: ConnectionError: no server")
    assert [step for step, _ in failing.rows] == [2]
    assert kept.rows == rows_of(result.history)
    assert torch.equal(flat(result.model), flat(expected))
    [summary] = dither.ledger.Ledger(tmp_path / "run").summary(1e-3)["runs"]
    assert summary["spent"] == result.steps == 6
    with pytest.warns(UserWarning, match="Failing failed when it was closed"):
        Sinks([Failing(4)]).close()


def test_only_the_first_of_several_ranks_sends_numbers() -> None:
    kept = Kept()
    others = Sinks([kept], is_used=False)
    others.log(1, {"epsilon": 0.5})
    others.close()
    assert (kept.rows, kept.closed) == ([], 0)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(TypeError, match="sinks must be a list of objects with log"):
        dither.train(model(), data(), noisy_plan(), sinks=["run.jsonl"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got Tensor in it"):
        private(noisy_plan(), sinks=[torch.zeros(1)])


def test_json_lines_are_the_history(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    result = trained(JsonlSink(path))
    assert lines_of(path) == rows_of(result.history)
    take_steps(private(quiet_plan(2), sinks=[JsonlSink(tmp_path / "quiet.jsonl")]))
    assert [row["epsilon"] for _, row in lines_of(tmp_path / "quiet.jsonl")] == [None, None]


def killed(*sinks: Sink, directory: Path) -> None:
    """Stop a run of 12 steps when 8 were logged; its checkpoint has 5."""

    class Killing(Kept):
        def log(self, step: int, numbers: Mapping[str, float]) -> None:
            if step == 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(*sinks, Killing(), steps=12, run=Run(directory, checkpoint_every=5))


def resumed(*sinks: Sink, directory: Path) -> TrainResult:
    """Resume that run: three steps are lost, and keep their numbers."""
    run = Run(directory, checkpoint_every=5, resume=True)
    with pytest.warns(UserWarning, match="3 steps were spent and lost"):
        return trained(*sinks, steps=12, run=run)


def test_a_resumed_run_continues(tmp_path: Path) -> None:
    path, kept = tmp_path / "numbers.jsonl", Kept()
    directory = tmp_path / "run"
    killed(JsonlSink(path), directory=directory)
    with path.open("a", encoding="utf-8") as lines:
        lines.write('{"step": 9, "eps')  # which was being written
    assert [step for step, _ in lines_of_whole(path)] == [2, 4, 6, 8]
    result = resumed(JsonlSink(path), kept, directory=directory)
    assert [row.step for row in result.history] == [2, 4, 6, 8, 10, 12, 14, 15]
    assert lines_of(path) == rows_of(result.history)
    assert kept.rows == rows_of(result.history)[4:]


def lines_of_whole(path: Path) -> Numbers:
    """Return the lines of a file but the last, which was cut off."""
    whole = path.read_text(encoding="utf-8").splitlines()[:-1]
    rows = [json.loads(line) for line in whole]
    return [(row.pop("step"), row) for row in rows]


def test_tensorboard_reads_the_history(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed(TensorBoardSink(tmp_path / "tb"), directory=tmp_path / "run")
    result = resumed(TensorBoardSink(tmp_path / "tb"), directory=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    expected = rows_of(result.history)
    assert {*events.Tags()["scalars"]} == STEP_NAMES | PUBLIC_NAMES
    for name in STEP_NAMES | PUBLIC_NAMES:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        # TensorBoard keeps float32: half a unit in the last of 24 places.
        assert [step for step, _ in found] == [step for step, _ in expected]
        for (_, value), (_, row) in zip(found, expected, strict=True):
            assert value == pytest.approx(row[name], rel=2.0**-24)


@pytest.mark.evidence
def test_mlflow_has_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    first = MLflowSink("digits", run_name="one", tracking_uri=uri)
    assert first.run_id is None
    killed(first, directory=tmp_path / "run")
    again = MLflowSink("digits", run_id=first.run_id, tracking_uri=uri)
    result = resumed(again, directory=tmp_path / "run")
    client = MlflowClient(uri)
    made = client.get_run(str(first.run_id))
    assert (made.info.run_name, made.info.status) == ("one", "FINISHED")
    expected = rows_of(result.history)
    assert {*made.data.metrics} == STEP_NAMES | PUBLIC_NAMES
    for name in STEP_NAMES | PUBLIC_NAMES:
        history = client.get_metric_history(str(first.run_id), name)
        found = [(each.step, each.value) for each in history]
        assert found == [(step, row[name]) for step, row in expected]
    other = MLflowSink("digits", tracking_uri=uri)
    trained(other)
    assert other.run_id not in (None, first.run_id)


def test_what_a_file_has_from_the_first_step_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    for steps in ((1, 2, 3), (2, 3)):
        sink = JsonlSink(path)
        for step in steps:
            sink.log(step, {"epsilon": len(steps)})
    assert lines_of(path) == [(1, {"epsilon": 3}), (2, {"epsilon": 2}), (3, {"epsilon": 2})]


def records_of(written: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB, as W&B writes it after a header of 7 bytes."""
    place, parts = 7, b""
    while place < len(written):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        _, length, kind = struct.unpack("<IHB", written[place : place + 7])
        parts += written[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield parts
            parts = b""


@pytest.mark.evidence
@pytest.mark.filterwarnings("default")
def test_wandb_has_the_history_and_nothing_else(tmp_path: Path) -> None:
    import wandb
    from wandb.proto import wandb_internal_pb2

    print("a secret of the program")  # noqa: T201 - which must not be collected
    result = trained(WandbSink("digits", dir=str(tmp_path)))
    wandb.teardown()  # wait for its service, which writes the file
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"a secret" not in file.read_bytes()
    rows, kinds = [], set()
    for data_ in records_of(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data_)
        kinds.add(record.WhichOneof("record_type"))
        if record.WhichOneof("record_type") == "history":
            names = ["/".join(each.nested_key) or each.key for each in record.history.item]
            values = [json.loads(each.value_json) for each in record.history.item]
            row = dict(zip(names, values, strict=True))
            rows.append((row.pop("_step"), row))
    assert not kinds & {"output", "output_raw", "stats", "environment"}
    own = [(step, {k: v for k, v in row.items() if k[0] != "_"}) for step, row in rows]
    assert own == rows_of(result.history)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorBoardSink("runs"), "TensorBoardSink needs tensorboard: pip install"),
        (lambda: MLflowSink("digits"), "MLflowSink needs mlflow: pip install mlflow"),
        (lambda: WandbSink("digits"), "WandbSink needs wandb: pip install wandb"),
    ],
)
def test_a_library_that_is_missing_is_named(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dither.sinks.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=message):
        make()
