"""Fits the models of a peer on request, in an environment of its own that `benchmarks.peers` makes.

Reads lines of JSON: the model's class with its module, its settings, the paths of a split and of
the answer. Writes predictions (probabilities of classifiers) and answers with the seconds of the
fit. What the peer raises ends the server, with a traceback.
"""

import json
import sys
import time
import warnings
from importlib import import_module
from typing import Any

import numpy as np


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Fit, write the predictions for the test records, and return the seconds of the fit."""
    with np.load(asked["split"]) as split:
        X, test_X, y = (split[name] for name in ("X", "test_X", "y"))
    settings = {  # JSON has no tuples; diffprivlib takes nothing else as bounds
        name: tuple(value) if name.startswith("bounds_") else value
        for name, value in asked["settings"].items()
    }
    module, _, name = asked["model"].rpartition(".")
    model = getattr(import_module(module), name)(**settings)
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    predict = getattr(model, "predict_proba", model.predict)
    np.save(asked["answer"], predict(test_X))
    return {"seconds": seconds}


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
