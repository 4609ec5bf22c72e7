"""The page's server: bound to the loopback interface, for one person on this machine.

Who is let in: requests to this host and port by name (another name that points here is refused),
from this page or typed by hand (another site's page is refused), and, but for the page's own
scripts and style, only with the token that the printed address has. Nothing is written to disk.
"""

import json
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import bottle

from dither import validate
from dither.explorer import curves, settings
from dither.explorer.background import PARTS, Background, CrashedError, SupersededError
from dither.planning.planner import NOISES

HOST = "127.0.0.1"
_MOST_BYTES = 8192
_MOST_REQUESTS = 32
_SECONDS_OF_SILENCE = 5.0
_FILES = {
    "/app.js": "text/javascript; charset=utf-8",
    "/charts.js": "text/javascript; charset=utf-8",
    "/fields.js": "text/javascript; charset=utf-8",
    "/style.css": "text/css; charset=utf-8",
    "/icon.svg": "image/svg+xml",
}
_HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]


class Explorer:
    """The server of one page.

    Args:
        port: where to listen; 0 is any that is free.

    Example:
        >>> with Explorer() as explorer:
        ...     explorer.address.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, port: int = 0) -> None:
        if isinstance(port, bool) or port not in range(65536):
            raise validate.InvalidValueError(
                f"port must be a whole number from 0 (any that is free) to 65535, got {port!r}"
            )
        self.token = secrets.token_urlsafe(24)
        self._background = Background()
        try:
            self._server = make_server(
                HOST, int(port), self._guarded, server_class=_Server, handler_class=_Handler
            )
        except OSError as problem:
            raise validate.InvalidValueError(
                f"port must be one that is free on {HOST}, got {port!r}: {problem.strerror}"
            ) from None
        self.port = int(self._server.server_port)
        self._hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self._app = self._routes()

    @property
    def address(self) -> str:
        """Where the page is, with the token that opens it."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Answer until interrupted."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """End the worker and free the port."""
        self._background.close()
        self._server.server_close()

    def __enter__(self) -> "Explorer":
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()

    def _guarded(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Refuse strangers, and add to every answer what a browser must keep to."""

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[..., object]:
            return start_response(status, [*headers, *_HEADERS], *rest)

        plain = _is_plain(environ.get("PATH_INFO", ""))
        problem = self._refusal(environ) if plain else "the path must be of printable ASCII"
        if problem is None:
            answer: Iterable[bytes] = self._app(environ, start)
            return answer
        status = "403 Forbidden" if plain else "400 Bad Request"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"dither explore: {problem}\n".encode()]

    def _refusal(self, environ: WSGIEnvironment) -> str | None:
        origins = {f"http://{host}" for host in self._hosts}
        if environ.get("HTTP_HOST") not in self._hosts:
            return "requests to another host are refused"
        if environ.get("HTTP_ORIGIN", next(iter(origins))) not in origins:
            return "requests from other origins are refused"
        if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none"):
            return "requests from other sites are refused"
        path = environ.get("PATH_INFO", "")
        if path in _FILES:
            return None
        if path == "/":
            given = dict(parse_qsl(environ.get("QUERY_STRING", ""))).get("token", "")
        else:
            given = environ.get("HTTP_X_DITHER_TOKEN", "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "open the whole address that dither explore has printed, with its token"
        return None

    def _routes(self) -> bottle.Bottle:
        app = bottle.Bottle()
        app.route("/", "GET", lambda: _file("index.html", "text/html; charset=utf-8"))
        for path, kind in _FILES.items():
            app.route(path, "GET", lambda path=path, kind=kind: _file(path[1:], kind))
        app.route("/api/form", "GET", lambda: _json(settings.form()))
        app.route("/api/preview", "POST", self._preview)
        app.route("/api/exact", "POST", self._exact)
        app.default_error_handler = _error
        return app

    def _preview(self) -> bottle.HTTPResponse:
        body = _body()
        self._background.announce(*_page(body))
        try:
            return _json(curves.preview(settings.read(body.get("settings"))))
        except settings.FieldsError as problem:
            return _json({"errors": problem.problems}, 422)

    def _exact(self) -> bottle.HTTPResponse:
        body = _body()
        asked = {name: body.get(name) for name in ("settings", "noise", "part")}
        if asked["noise"] not in NOISES or asked["part"] not in PARTS:
            bottle.abort(400, f"noise must be one of {NOISES}, part one of {PARTS}")
        try:
            settings.read(asked["settings"])
            found = self._background.ask(*_page(body), asked)
        except settings.FieldsError as problem:
            return _json({"errors": problem.problems}, 422)
        except SupersededError:
            return _json({"superseded": True}, 409)
        except CrashedError as problem:
            raise bottle.HTTPError(500, str(problem)) from None
        return _json(found, 422 if "problem" in found else 200)


def _is_plain(path: str) -> bool:
    """Return whether a path means to the routes what it says: other bytes they would leave out."""
    return path.isascii() and path.isprintable()


def _body() -> dict[str, Any]:
    request = bottle.request
    if request.get_header("Content-Type", "").partition(";")[0] != "application/json":
        bottle.abort(415, "the body must be application/json")
    length = request.environ.get("CONTENT_LENGTH", "")
    if not length.isdecimal() or not 0 < int(length) <= _MOST_BYTES:
        bottle.abort(413, f"the body must have from 1 to {_MOST_BYTES} bytes")
    try:
        found = json.loads(request.environ["wsgi.input"].read(int(length)))
    except TimeoutError:
        bottle.abort(408, f"the body must follow within {_SECONDS_OF_SILENCE:g} seconds")
    except (ValueError, RecursionError):
        bottle.abort(400, "the body must be JSON, nested a few levels at most")
    if not isinstance(found, dict):
        bottle.abort(400, "the body must be a JSON object")
    return dict(found)


def _page(body: dict[str, Any]) -> tuple[str, int]:
    page, number = body.get("page"), body.get("number")
    if not isinstance(page, str) or len(page) > 64 or not isinstance(number, int):
        raise bottle.HTTPError(400, "page must be a short text and number a whole number")
    return page, number


def _json(value: dict[str, Any], status: int = 200) -> bottle.HTTPResponse:
    text = json.dumps(value, allow_nan=False)
    return bottle.HTTPResponse(text, status, {"Content-Type": "application/json"})


@lru_cache
def _text(name: str) -> str:
    return (files("dither.explorer") / "page" / name).read_text(encoding="utf-8")


def _file(name: str, kind: str) -> bottle.HTTPResponse:
    return bottle.HTTPResponse(_text(name), 200, {"Content-Type": kind})


def _error(problem: bottle.HTTPError) -> str:
    bottle.response.content_type = "text/plain; charset=utf-8"
    return f"dither explore: {problem.body}\n"


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, up to a number of them: more are hung up on."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who hang up or fall silent."""
        if not isinstance(sys.exception(), (TimeoutError, ConnectionError)):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS_OF_SILENCE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Say nothing: the terminal is for the address."""
