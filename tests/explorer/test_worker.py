"""The worker answers the newest request, and ends with the server."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.explorer.fields import eventually, texts

import dither
from dither import Plan
from dither.explorer.worker import PARTS, SupersededError, Worker, answer
from dither.noise.iterates import iterate_variances
from dither.types import rounded

# Some seven seconds on one core, much more than a worker needs to end.
SLOW = {
    "settings": texts(batch_size="16", epochs="50", sampling="fixed"),
    "noise": "optimal",
    "part": "spending",
}


def test_the_newest_request_is_answered() -> None:
    worker = Worker()
    quick = {"settings": texts(), "noise": "uniform", "part": "plan"}
    ended: list[type[BaseException]] = []

    def ask_slowly() -> None:
        try:
            worker.ask("page", 1, SLOW)
        except SupersededError:
            ended.append(SupersededError)

    thread = threading.Thread(target=ask_slowly)
    thread.start()
    eventually(lambda: worker._working_for is not None)
    found = worker.ask("page", 2, quick)
    thread.join()
    assert ended == [SupersededError]
    assert "fingerprint" in found
    with pytest.raises(SupersededError):
        worker.ask("page", 1, quick)
    worker.close()
    with pytest.raises(SupersededError):
        worker.ask("page", 3, quick)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_ends_with_the_server(end: signal.Signals) -> None:
    command = [sys.executable, "-m", "dither", "explore", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells' jobs ignore it
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        port, token = int(address.split(":")[2].split("/")[0]), address.partition("token=")[2]
        line = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"X-Dither-Token": token, "Content-Type": "application/json"}
        asked = json.dumps({"page": "a test", "number": 1, **SLOW})
        line.request("POST", "/api/exact", asked, headers)
        eventually(lambda: _busy_children(process.pid) != [])
        [worker] = _busy_children(process.pid)
        os.kill(process.pid, end)
        code = process.wait(timeout=10)
        eventually(lambda: not _is_running(worker), seconds=3.0)
        line.close()
        assert process.stderr is not None
        stderr = process.stderr.read().decode()
    if end is signal.SIGINT:
        assert (code, stderr) == (130, "dither explore: stopped\n")
    else:
        assert code == -end
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def _busy_children(parent: int) -> list[int]:
    """Return the processes that a server has started and that have done more than to start."""
    found = " ".join(path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children"))
    return [child for child in map(int, found.split()) if _seconds(child) > 1.2]


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _seconds(process: int) -> float:
    return int(_stat(process)[11]) / os.sysconf("SC_CLK_TCK")


def _is_running(process: int) -> bool:
    try:
        return _stat(process)[0] != "Z"
    except FileNotFoundError:
        return False


# Few strong steps: correlated noise is found in about a second.
STRONG = {"epsilon": "8", "dataset_size": "10000", "batch_size": "50", "epochs": "0.2"}


def test_correlated_noise_is_answered_part_by_part() -> None:
    given = texts(**STRONG, noise="correlated")
    parts = {
        part: answer({"settings": given, "noise": "correlated", "part": part}) for part in PARTS
    }
    made = Plan.from_json(parts["json"]["json"])
    assert (made.sampling, made.steps) == ("cyclic", 40)
    assert made.bands == parts["plan"]["comparison"]["bands"] > 1
    assert parts["plan"]["comparison"]["variance_relative_to_uniform"] < 0.8
    assert parts["plan"]["comparison"]["relative_to_uniform"] is None
    assert "note" not in parts["plan"]
    last = parts["plan"]["iterate_noise"][-1]
    variances = iterate_variances(
        made.stepsizes, made.noise_multipliers, correlation=made.correlation
    )
    assert last == [40, pytest.approx(variances[-1] ** 0.5, rel=1e-5)]
    spent = parts["spending"]["spent"]
    assert spent[0] == [0, 0.0]
    # Rounded up: the first step is charged with its cycle, the last with all of them.
    first = dither.epsilon(made.charges[:1], sample_rate=made.charge_rate, delta=1e-5).epsilon
    assert first <= spent[1][1] <= 1.01 * first
    assert spent[-1] == [40, float(rounded(made.bound.epsilon, 4))]
    assert parts["costs"]["costs"]["pld"]["epsilon"] == rounded(made.bound.epsilon, 5)


def test_where_correlated_noise_gains_nothing_the_page_says_so() -> None:
    full = texts(dataset_size="1000", batch_size="1000", epochs="20")
    found = answer({"settings": full, "noise": "correlated", "part": "plan"})
    optimal = answer({"settings": full, "noise": "optimal", "part": "plan"})
    assert found.pop("note") == "gains nothing over optimal noise here, and is the same."
    assert found == optimal
    fixed = texts(**STRONG, sampling="fixed")
    refused = answer({"settings": fixed, "noise": "correlated", "part": "plan"})
    assert refused["field"] == "sampling"
    assert refused["problem"].startswith("sampling must be poisson or cyclic for correlated noise")
