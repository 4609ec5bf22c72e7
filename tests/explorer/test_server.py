import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.errors import error_line
from tests.explorer.fields import eventually, texts

import dither
from dither.explorer import Explorer
from dither.types import rounded


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
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        line.request(method, path, text, given)
        answer = line.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def message(**more: Any) -> dict[str, Any]:
    return {"page": "a test", "number": 1, "settings": texts(), **more}


def test_the_page_and_its_files(explorer: Explorer) -> None:
    own = ("/app.js", "/charts.js", "/fields.js", "/style.css", "/icon.svg")
    for path in (f"/?token={explorer.token}", *own):
        status, text, headers = ask(explorer, "GET", path, X_Dither_Token="")
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
        ({"Host": "127.0.0.1:1"}, "another host"),
        ({"Origin": "http://evil.example"}, "other origins"),
        ({"Origin": "http://127.0.0.1:1"}, "other origins"),
        ({"Origin": "null"}, "other origins"),
        ({"X_Dither_Token": ""}, "token"),
        ({"X_Dither_Token": "guess"}, "token"),
        ({"X_Dither_Token": "gu\u00e9ss"}, "token"),
    ],
)
def test_other_hosts_origins_and_tokens_are_refused(
    explorer: Explorer, headers: dict[str, str], reason: str
) -> None:
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
        assert "the full address" in text


@pytest.mark.parametrize(
    "path", ["/api/form", "/API/form", "//api/form", "/%61pi/form", "/./api/form"]
)
def test_no_spelling_of_a_path_avoids_the_token(explorer: Explorer, path: str) -> None:
    assert ask(explorer, "GET", path, X_Dither_Token="")[0] == 403
    assert ask(explorer, "GET", path)[0] in (200, 404)


def test_it_listens_on_loopback_only(explorer: Explorer) -> None:
    assert explorer._server.server_address[0] == "127.0.0.1"


def test_own_requests_are_answered(explorer: Explorer) -> None:
    own = {"Origin": f"http://127.0.0.1:{explorer.port}"}
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


@pytest.mark.parametrize("body", [[1], b"", b"{"])
def test_a_body_must_be_a_json_object(explorer: Explorer, body: object) -> None:
    status, text, _ = ask(explorer, "POST", "/api/preview", body)
    assert status == 400
    assert text == "dither explore: the body must be a JSON object\n"


def test_a_worker_that_crashes_is_reported(explorer: Explorer) -> None:
    slow = message(settings=texts(batch_size="64", epochs="50"), noise="matched", part="plan")
    found: list[tuple[int, str, http.client.HTTPMessage]] = []
    thread = threading.Thread(
        target=lambda: found.append(ask(explorer, "POST", "/api/exact", slow))
    )
    thread.start()
    worker = explorer._worker
    eventually(lambda: worker._working_for is not None)
    assert worker._process is not None
    worker._process.kill()
    thread.join()
    [(status, text, _)] = found
    assert status == 500
    assert "the exact plan was not made: its process ended with code -9" in text


def test_exact_parts_are_those_of_the_library(explorer: Explorer) -> None:
    def part(name: str) -> Any:
        asked = message(number=5, settings=texts(epochs="0.4"), noise="uniform", part=name)
        status, text, _ = ask(explorer, "POST", "/api/exact", asked)
        assert status == 200
        return json.loads(text)

    planned = dither.plan(
        epsilon=1.0,
        delta=1e-5,
        dataset_size=60_000,
        batch_size=2_000,
        epochs=0.4,
        stepsizes=dither.schedules.Linear(1.0, 0.01),
        noise="uniform",
    )
    found = part("plan")
    assert found["fingerprint"] == planned.fingerprint
    assert found["noise"][-1] == [12, pytest.approx(planned.noise_multipliers[-1], rel=1e-5)]
    saved = part("json")
    assert dither.Plan.from_json(saved["json"]) == planned
    assert saved["fingerprint"] == planned.fingerprint
    assert saved["epsilon"] == rounded(planned.bound.epsilon, 4)
    for (number, shown), exact in zip(
        part("spending")["spent"], planned.spending()[1], strict=True
    ):
        assert exact <= shown <= 1.001 * exact
        assert shown == float(f"{shown:.4g}"), number  # the page shows all digits
    costs = part("costs")["costs"]
    assert costs["pld"]["proven"]
    assert not costs["gdp"]["proven"]
    assert planned.bound.epsilon <= float(costs["pld"]["epsilon"])


def test_an_error_of_the_plan_names_its_field(explorer: Explorer) -> None:
    rare = texts(dataset_size="1000000", batch_size="1", epochs="0.001", delta="1e-4")
    asked = message(number=6, settings=rare, noise="optimal", part="plan")
    status, text, _ = ask(explorer, "POST", "/api/exact", asked)
    assert status == 422
    assert json.loads(text)["field"] == "batch_size"
    assert "sample_rate must be above delta" in json.loads(text)["problem"]


def test_a_port_in_use_is_one_line(explorer: Explorer, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explore", "--no-browser", "--port"]
    message = error_line([*argv, str(explorer.port)], capsys)
    assert f"port must be free on 127.0.0.1, got {explorer.port}" in message
    for port in ("-1", "65536", "80.5"):
        assert "port must be an integer" in error_line([*argv, port], capsys)
