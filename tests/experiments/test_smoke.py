"""The smoke profile: experiments in miniature, interrupted and resumed; evidence runs all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.reproduction import features
from experiments.reproduction.__main__ import main
from experiments.reproduction.catalogue import EXPERIMENTS

from dither.data import Examples, Split
from dither.data import directory as data_directory

has_data = all((data_directory() / name).exists() for name in ("cifar10", "mnist", "fashion-mnist"))


def lines(runs: Path) -> list[dict[str, Any]]:
    path = runs / "runs.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def key(line: dict[str, Any]) -> str:
    return json.dumps([line["kind"], line["run"]], sort_keys=True)


def results(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {key(line): (line["accuracies"], line["epsilon"]) for line in found}


def start(runs: Path, *more: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "experiments.reproduction", *more, "--out", str(runs)]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def random_images(name: str) -> Split:
    """Return a few random images in place of CIFAR-10."""

    def some(count: int) -> Examples:
        rng = torch.Generator().manual_seed(count)
        images = torch.rand(count, 3, 32, 32, generator=rng)
        return Examples(images, torch.arange(count) % 10, [*"0123456789"])

    return Split(some(200), some(40))


def test_an_interrupted_experiment_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DITHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("experiments.reproduction.features.load", random_images)
    features._images.cache_clear()
    directory = tmp_path / "runs"
    options = ["--profile", "smoke", "--out", str(directory)]
    assert main(["figure3", *options, "--jobs", "1"]) == 0
    complete = lines(directory)
    assert len(complete) == len(results(complete)) == 15
    with (directory / "runs.jsonl").open("r+b") as file:
        text = file.read()
        file.truncate(len(text) // 2)
    before = lines(directory)
    assert len(before) < 10

    assert main(["figure3", *options, "--jobs", "1", "--resume"]) == 0
    assert lines(directory)[: len(before)] == before
    assert results(lines(directory)) == results(complete)
    assert main(["table-adaptive", *options, "--jobs", "1", "--resume"]) == 0
    assert {line["kind"] for line in lines(directory)} == {"head", "adaptive"}
    assert "gap" in capsys.readouterr().out
    features._images.cache_clear()


@pytest.mark.evidence
@pytest.mark.skipif(not has_data, reason="DITHER_DATA has not all of the paper's sets")
def test_the_smoke_profile_runs_everything_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DITHER_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    out, err = start(runs, "all", "--profile", "smoke", "--jobs", "2").communicate(timeout=600)
    found = lines(runs)
    assert found, err
    assert max(Counter(map(key, found)).values()) == 1
    assert {line["kind"] for line in found} == {"head", "adaptive", "network", "state"}
    for line in found:
        assert line["command"] == "python -m experiments.reproduction all --profile smoke --seeds 1"
        assert len(line["commit"]) == 40
        assert line["seconds"] >= 0.0
        assert {"python", "dither", "torch", "numpy", "kymatio"} <= set(line["versions"])
    assert out.count("gap optimal − uniform") == 16

    assert main(["report", "--profile", "smoke", "--out", str(runs)]) == 0
    assert capsys.readouterr().out.endswith("report.md\n")
    report = (runs / "report.md").read_text(encoding="utf-8")
    for name in EXPERIMENTS:
        assert f"`python -m experiments.reproduction {name}`" in report
    pictures = [part.split(")")[0] for part in report.split("](")[1:]]
    assert len(pictures) >= 10
    for picture in pictures:
        assert (runs / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.evidence
@pytest.mark.skipif(not has_data, reason="DITHER_DATA has not all of the paper's sets")
def test_a_killed_run_resumes_without_repeating_and_one_job_gives_the_same(tmp_path: Path) -> None:
    runs, alone = tmp_path / "killed", tmp_path / "alone"
    smoke = ("figure-constant-vs-decay", "--profile", "smoke", "--seeds", "1")
    killed = start(runs, *smoke, "--jobs", "2")
    deadline = time.monotonic() + 300.0
    while len(lines(runs)) < 2 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = lines(runs)
    assert 2 <= len(before) < 8

    resumed = start(runs, *smoke, "--jobs", "2", "--resume")
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    after = lines(runs)
    assert after[: len(before)] == before
    assert len(after) == len(results(after)) == 8

    assert main([*smoke, "--jobs", "1", "--out", str(alone)]) == 0
    assert results(lines(alone)) == results(after)
