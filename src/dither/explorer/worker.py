"""The process that makes exact plans: one request a line comes in, one answer a line goes out.

It is a process of its own so that a plan which nobody waits for any more can be ended, and so that
the preview does not wait for it.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TextIO

from dither import validate
from dither.explorer import curves
from dither.explorer.settings import FieldsError, Settings, read
from dither.planning import Plan, plan


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what is asked of one plan: its curves, what it spends, what it costs, or its JSON."""
    try:
        settings = read(request["settings"])
        made = _made(settings, request["noise"])
        return _PARTS[request["part"]](settings, made)
    except FieldsError as problem:
        return {"errors": problem.problems}
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        return curves.refusal(problem)


_PARTS: dict[str, Callable[[Settings, Plan], dict[str, Any]]] = {
    "plan": lambda settings, made: curves.exact(settings, made, _made(settings, "uniform")),
    "spending": lambda _, made: curves.spending(made),
    "prices": lambda _, made: curves.costs(made),
    "json": lambda _, made: curves.saved(made),
}


def _made(settings: Settings, noise: str) -> Plan:
    arguments = {**settings.arguments(), "noise": noise}
    return _planned(tuple(arguments.items()))


@lru_cache(maxsize=12)
def _planned(arguments: tuple[tuple[str, Any], ...]) -> Plan:
    made: Plan = plan(**dict(arguments))
    return made


def run(requests: Iterable[str], answers: TextIO) -> None:
    """Answer until there is nothing more to read."""
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")
        answers.flush()


def _while_someone_asks(requests: TextIO) -> Iterator[str]:
    """Yield the lines; end the process, whatever it is computing, when no more can come.

    The pipe is closed when the server is gone, however it went.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def watch() -> None:
        for line in requests:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        yield lines.get()


if __name__ == "__main__":
    run(_while_someone_asks(sys.stdin), sys.stdout)
