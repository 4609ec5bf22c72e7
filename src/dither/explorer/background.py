"""Exact plans in the background: one at a time, and the newest wins."""

import contextlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import Any

PARTS = ("plan", "spending", "prices", "json")
"""What can be asked of a plan."""

_MOST_PAGES = 64


class SupersededError(Exception):
    """Something newer was asked for on the same page: nobody waits for this answer."""


class CrashedError(Exception):
    """The worker ended by itself: this answer will not come."""


class Background:
    """A worker process, started when it is needed and ended when what it does is stale."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._process: subprocess.Popen[str] | None = None
        self._working_for: tuple[str, int] | None = None
        self._closed = False

    def announce(self, page: str, number: int) -> None:
        """Note that a page has moved on: its older work is ended."""
        with self._state:
            self._newest[page] = max(number, self._newest.get(page, number))
            self._newest.move_to_end(page)
            while len(self._newest) > _MOST_PAGES:
                self._newest.popitem(last=False)
            working = self._working_for
            if working is not None and working[0] == page and working[1] < number:
                self._end()

    def ask(self, page: str, number: int, request: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer.

        Raises:
            SupersededError: if the page has moved on before, or meanwhile.
            CrashedError: if the worker has ended for another reason.
        """
        self.announce(page, number)
        with self._turn:
            with self._state:
                if self._closed or self._newest.get(page, number) > number:
                    raise SupersededError
                self._working_for = (page, number)
                process = self._started()
            try:
                return self._exchange(process, request)
            finally:
                with self._state:
                    self._working_for = None

    def close(self) -> None:
        """End the worker."""
        with self._state:
            self._closed = True
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
        _close(process)
        with self._state:
            superseded = self._process is not process
        if superseded:
            raise SupersededError
        raise CrashedError(
            f"the exact plan was not made: its process ended with code {process.wait()}; "
            "change a setting to try again"
        )

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            # A session of its own: Ctrl-C is for the server, which ends the worker.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dither.explorer.worker"],
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
                _close(process)


def _close(process: "subprocess.Popen[str]") -> None:
    """Close the pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
