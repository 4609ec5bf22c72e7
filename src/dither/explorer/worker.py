"""Exact plans in a process of their own, so that one that is out of date can be ended.

A request is one line of JSON on the process's input, and its answer one line on the output.
"""

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from decimal import ROUND_FLOOR
from functools import lru_cache
from typing import Any, TextIO

from dither import validate
from dither.explorer.preview import comparison, noise_curves, some_steps, spent_points
from dither.explorer.settings import FieldsError, Settings, field_of, read
from dither.planning import Plan, plan
from dither.types import rounded


class SupersededError(Exception):
    """The page has sent a newer request: this one is not answered."""


class CrashedError(Exception):
    """The worker process ended by itself."""


class Worker:
    """A process that makes exact plans, started when it is needed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._newest: dict[str, int] = {}
        self._process: subprocess.Popen[str] | None = None
        self._working_for: tuple[str, int] | None = None
        self._is_closed = False

    def announce(self, page: str, number: int) -> None:
        """Note the newest request of a page: work on an older one is ended."""
        with self._state:
            self._newest[page] = max(number, self._newest.get(page, number))
            working = self._working_for
            if working is not None and working[0] == page and working[1] < number:
                self._end()

    def ask(self, page: str, number: int, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            SupersededError: if the page has sent a newer request.
            CrashedError: if the process has ended for another reason.
        """
        self.announce(page, number)
        with self._turn:
            with self._state:
                if self._is_closed or self._newest[page] > number:
                    raise SupersededError
                self._working_for = (page, number)
                process = self._start()
            try:
                return self._exchange(process, request)
            finally:
                with self._state:
                    self._working_for = None
                    if self._process is not process or process.poll() is not None:
                        _close_pipes(process)

    def close(self) -> None:
        """End the process."""
        with self._state:
            self._is_closed = True
            self._end()

    def _exchange(
        self, process: "subprocess.Popen[str]", request: dict[str, Any]
    ) -> dict[str, Any]:
        assert process.stdin is not None  # noqa: S101 (for the type checker: both are pipes)
        assert process.stdout is not None  # noqa: S101
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ValueError):
            line = ""
        if line:
            return dict(json.loads(line))
        with self._state:
            is_superseded = self._process is not process
        if is_superseded:
            raise SupersededError
        raise CrashedError(
            f"the exact plan was not made: its process ended with code {process.wait()}; "
            "change a setting to try again"
        )

    def _start(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            # A session of its own: Ctrl-C is for the server, which ends the worker.
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from dither.explorer import worker; worker.main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if self._working_for is None:
                _close_pipes(process)


def _close_pipes(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


# In the process


def main() -> None:
    """Answer requests until the input is closed."""
    for line in _lines(sys.stdin):
        sys.stdout.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")
        sys.stdout.flush()


def _lines(requests: TextIO) -> Iterator[str]:
    """Yield lines, and exit as soon as the server is gone, whatever is being computed."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def watch() -> None:
        for line in requests:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        yield lines.get()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return one part of an exact plan, or what is wrong with a field."""
    try:
        settings, noise = read(request["settings"]), request["noise"]
        return PARTS[request["part"]](settings, _plan(settings, noise), noise)
    except FieldsError as problem:
        return {"errors": problem.problems}
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        return {"problem": str(problem), "field": field_of(str(problem))}


def _plan(settings: Settings, noise: str) -> Plan:
    return _cached_plan(tuple({**settings.arguments(), "noise": noise}.items()))


@lru_cache(maxsize=12)
def _cached_plan(arguments: tuple[tuple[str, Any], ...]) -> Plan:
    with warnings.catch_warnings():  # the page says where correlated noise gains nothing
        warnings.filterwarnings("ignore", message="correlated noise gains nothing")
        exact: Plan = plan(**dict(arguments))
    return exact


def _curves(settings: Settings, exact: Plan, noise: str) -> dict[str, Any]:
    eta, z, theta = exact.stepsizes, exact.noise_multipliers, exact.correlation
    uniform = _plan(settings, "uniform").noise_multipliers
    gains = noise != "correlated" or theta is not None
    return {
        **({} if gains else {"note": "gains nothing over optimal noise here, and is the same."}),
        **noise_curves(eta, z, some_steps(exact.steps), theta),
        "comparison": comparison(eta, z, uniform, theta),
        "statement": str(exact.bound),
        "fingerprint": exact.fingerprint,
    }


def _spending(_: Settings, exact: Plan, __: str) -> dict[str, Any]:
    """Return upper bounds on ε after some numbers of steps."""
    return {"spent": spent_points(*exact.spending())}


def _costs(_: Settings, exact: Plan, __: str) -> dict[str, Any]:
    """Return ε by every accountant, rounded up, and whether it is proven."""
    return {
        "costs": {
            name: {
                "epsilon": rounded(bound.epsilon, 5) if math.isfinite(bound.epsilon) else None,
                "lower": None if bound.lower is None else rounded(bound.lower, 5, ROUND_FLOOR),
                "proven": bound.is_upper_bound,
            }
            for name, bound in exact.costs().items()
        }
    }


def _json(_: Settings, exact: Plan, __: str) -> dict[str, Any]:
    epsilon = rounded(exact.bound.epsilon, 4)
    return {"json": exact.to_json(), "epsilon": epsilon, "fingerprint": exact.fingerprint}


PARTS: dict[str, Callable[[Settings, Plan, str], dict[str, Any]]] = {
    "plan": _curves,
    "spending": _spending,
    "costs": _costs,
    "json": _json,
}
"""What can be asked of a plan."""
