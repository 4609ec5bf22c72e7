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

from dither.explorer.worker import SupersededError, Worker

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
