"""The server of the page: on the loopback interface, for one person on this machine.

Requests must name this host and port, must not come from another site's page, and, except for the
page's scripts and style, need the token of the printed address. Nothing is written to disk.
"""

import json
import secrets
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
from dither.explorer import settings
from dither.explorer.preview import preview
from dither.explorer.worker import CrashedError, SupersededError, Worker

HOST = "127.0.0.1"
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
    ("Cache-Control", "no-store"),
]


class Explorer:
    """The server of the page on which plans are made interactively.

    Args:
        port: where to listen on 127.0.0.1; 0 is any free port.

    Example:
        >>> with Explorer() as explorer:
        ...     explorer.address.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, port: int = 0) -> None:
        if isinstance(port, bool) or port not in range(65536):
            raise validate.InvalidValueError(
                f"port must be an integer from 0 (any free port) to 65535, got {port!r}"
            )
        self.token = secrets.token_urlsafe(24)
        self._worker = Worker()
        try:
            self._server = make_server(
                HOST, int(port), self._answer, server_class=_Server, handler_class=_Handler
            )
        except OSError as problem:
            raise validate.InvalidValueError(
                f"port must be free on {HOST}, got {port!r}: {problem.strerror}"
            ) from None
        self.port = int(self._server.server_port)
        self._hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self._app = self._routes()

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Answer requests until interrupted."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """End the worker and free the port."""
        self._worker.close()
        self._server.server_close()

    def __enter__(self) -> "Explorer":
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request that is allowed, with the security headers."""

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[..., object]:
            return start_response(status, [*headers, *_HEADERS], *rest)

        problem = self._refusal(environ)
        if problem is None:
            answer: Iterable[bytes] = self._app(environ, start)
            return answer
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"dither explore: {problem}\n".encode()]

    def _refusal(self, environ: WSGIEnvironment) -> str | None:
        origins = {f"http://{host}" for host in self._hosts}
        if environ.get("HTTP_HOST") not in self._hosts:
            return "requests to another host are refused"
        if environ.get("HTTP_ORIGIN", next(iter(origins))) not in origins:
            return "requests from other origins are refused"
        path = environ.get("PATH_INFO", "")
        if path in _FILES:
            return None
        token = environ.get("HTTP_X_DITHER_TOKEN", "")
        if path == "/":
            token = dict(parse_qsl(environ.get("QUERY_STRING", ""))).get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "open the full address that dither explore has printed, with its token"
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
        self._worker.announce(body["page"], body["number"])
        try:
            return _json(preview(settings.read(body["settings"])))
        except settings.FieldsError as problem:
            return _json({"errors": problem.problems}, 422)

    def _exact(self) -> bottle.HTTPResponse:
        body = _body()
        request = {name: body[name] for name in ("settings", "noise", "part")}
        try:
            answer = self._worker.ask(body["page"], body["number"], request)
        except SupersededError:
            return _json({"superseded": True}, 409)
        except CrashedError as problem:
            raise bottle.HTTPError(500, str(problem)) from None
        return _json(answer, 422 if {"errors", "problem"} & {*answer} else 200)


def _body() -> dict[str, Any]:
    try:
        return dict(bottle.request.json)
    except (TypeError, ValueError, bottle.HTTPError):
        raise bottle.HTTPError(400, "the body must be a JSON object") from None


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
    """A thread for each request."""

    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: the terminal is for the address."""
