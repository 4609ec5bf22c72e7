import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.refusals import complaint
from tests.explorer.fields import texts

import dither
from dither.explorer import Explorer
from dither.explorer.background import Background, SupersededError


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with Explorer() as serving:
        yield serving


def ask(
    explorer: Explorer, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """Send one request, with the token unless another is given."""
    given = {"X-Dither-Token": explorer.token, "Content-Type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", explorer.port, timeout=60)
    ) as line:
        line.request(method, path, None if body is None else json.dumps(body), given)
        answer = line.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def message(**more: Any) -> dict[str, Any]:
    return {"page": "a test", "number": 1, "settings": texts(), **more}


def test_the_page_and_its_files(explorer: Explorer) -> None:
    for path in (f"/?token={explorer.token}", "/app.js", "/charts.js", "/style.css", "/icon.svg"):
        status, text, headers = ask(explorer, "GET", path)
        assert status == 200
        assert text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "evil.example"}, "another host"),
        ({"Host": "evil.example:{port}"}, "another host"),
        ({"Host": "127.0.0.1:1"}, "another host"),
        ({"Origin": "http://evil.example"}, "other origins"),
        ({"Origin": "http://127.0.0.1:1"}, "other origins"),
        ({"Origin": "https://127.0.0.1:{port}"}, "other origins"),
        ({"Origin": "null"}, "other origins"),
        ({"Sec_Fetch_Site": "cross-site"}, "other sites"),
        ({"Sec_Fetch_Site": "same-site"}, "other sites"),
        ({"X_Dither_Token": ""}, "token"),
        ({"X_Dither_Token": "guess"}, "token"),
        ({"X_Dither_Token": "gu\u00e9ss"}, "token"),
    ],
)
def test_strangers_are_refused(explorer: Explorer, headers: dict[str, str], reason: str) -> None:
    given = {name: text.replace("{port}", str(explorer.port)) for name, text in headers.items()}
    for method, path, body in (
        ("POST", "/api/preview", message()),
        ("POST", "/api/exact", message(noise="uniform", part="plan")),
        ("GET", "/api/form", None),
    ):
        status, text, answered = ask(explorer, method, path, body, **given)
        assert status == 403
        assert reason in text
        assert "Access-Control-Allow-Origin" not in answered


def test_the_page_itself_needs_the_token(explorer: Explorer) -> None:
    for path in ("/", "/?token=guess", "/?token="):
        status, text, _ = ask(explorer, "GET", path)
        assert status == 403
        assert "the whole address" in text


def test_it_listens_on_loopback_only(explorer: Explorer) -> None:
    assert explorer._server.server_address[0] == "127.0.0.1"


def test_own_requests_are_answered(explorer: Explorer) -> None:
    own = {"Origin": f"http://127.0.0.1:{explorer.port}", "Sec_Fetch_Site": "same-origin"}
    status, text, _ = ask(explorer, "POST", "/api/preview", message(), **own)
    assert status == 200
    assert json.loads(text)["steps"] == 60


def test_bad_values_come_back_with_their_fields(explorer: Explorer) -> None:
    bad = message(settings=texts(epsilon="-1"), noise="uniform", part="plan")
    for path in ("/api/preview", "/api/exact"):
        status, text, _ = ask(explorer, "POST", path, bad)
        assert status == 422
        assert json.loads(text)["errors"] == {
            "epsilon": "epsilon must be a positive, finite number, got -1"
        }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([1], 400),
        (message(page=3), 400),
        (message(page="x" * 65), 400),
        (message(number="1"), 400),
        (message(more="x" * 10_000), 413),
    ],
)
def test_odd_bodies_are_refused(explorer: Explorer, body: object, status: int) -> None:
    found, text, _ = ask(explorer, "POST", "/api/preview", body)
    assert found == status
    assert text.startswith("dither explore: ")
    assert text.count("\n") == 1


def test_other_kinds_and_parts_are_refused(explorer: Explorer) -> None:
    assert ask(explorer, "POST", "/api/preview", message(), Content_Type="text/plain")[0] == 415
    for odd in ({"noise": "other", "part": "plan"}, {"noise": "uniform", "part": "other"}):
        assert ask(explorer, "POST", "/api/exact", message(**odd))[0] == 400
    assert ask(explorer, "GET", "/../server.py")[0] == 404
    assert ask(explorer, "GET", "/api/preview")[0] == 405


def test_exact_parts_are_those_of_the_library(explorer: Explorer) -> None:
    def part(name: str) -> Any:
        asked = message(number=5, noise="uniform", part=name)
        status, text, _ = ask(explorer, "POST", "/api/exact", asked)
        assert status == 200
        return json.loads(text)

    planned = dither.plan(
        epsilon=1.0,
        delta=1e-5,
        dataset_size=60_000,
        batch_size=2_000,
        epochs=2,
        stepsizes=dither.schedules.Linear(1.0, 0.01),
        noise="uniform",
    )
    found = part("plan")
    assert found["fingerprint"] == planned.fingerprint
    assert found["noise"][-1] == [60, pytest.approx(planned.noise_multipliers[-1], rel=1e-5)]
    assert dither.Plan.from_json(part("json")["json"]) == planned
    spent = part("spending")["spent"]
    assert spent[-1] == [60, pytest.approx(planned.bound.epsilon, rel=1e-5)]
    prices = part("prices")["prices"]
    assert prices["pld"]["proven"]
    assert not prices["gdp"]["proven"]
    assert planned.bound.epsilon <= float(prices["pld"]["epsilon"])


def test_noise_that_cannot_be_had_is_told_at_a_field(explorer: Explorer) -> None:
    rare = texts(dataset_size="1000000", batch_size="1", epochs="0.001", delta="1e-4")
    asked = message(number=6, settings=rare, noise="optimal", part="plan")
    status, text, _ = ask(explorer, "POST", "/api/exact", asked)
    assert status == 422
    assert json.loads(text)["field"] == "batch_size"
    assert "sample_rate must be above delta" in json.loads(text)["problem"]


def test_the_newest_wins() -> None:
    background = Background()
    slow = {"settings": texts(batch_size="64", epochs="50"), "noise": "matched", "part": "plan"}
    quick = {"settings": texts(), "noise": "uniform", "part": "plan"}
    ended: list[type[BaseException]] = []

    def ask_slowly() -> None:
        try:
            background.ask("page", 1, slow)
        except SupersededError:
            ended.append(SupersededError)

    thread = threading.Thread(target=ask_slowly)
    thread.start()
    while background._working_for is None:
        time.sleep(0.01)
    found = background.ask("page", 2, quick)
    thread.join()
    assert ended == [SupersededError]
    assert "fingerprint" in found
    with pytest.raises(SupersededError):
        background.ask("page", 1, quick)
    background.close()
    with pytest.raises(SupersededError):
        background.ask("page", 3, quick)


def test_ctrl_c_ends_it_and_frees_the_port() -> None:
    command = [sys.executable, "-m", "dither", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        port = int(address.split(":")[2].split("/")[0])
        assert address.startswith(f"http://127.0.0.1:{port}/?token=")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr is not None
        assert process.stderr.read().decode() == "dither explore: stopped\n"
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_a_port_in_use_is_one_line(explorer: Explorer, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explore", "--no-browser", "--port"]
    said = complaint([*argv, str(explorer.port)], capsys)
    assert f"port must be one that is free on 127.0.0.1, got {explorer.port}" in said
    for odd in ("-1", "65536", "80.5"):
        assert "port must be a whole number" in complaint([*argv, odd], capsys)
