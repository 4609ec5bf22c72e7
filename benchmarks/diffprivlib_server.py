"""Fits diffprivlib's logistic regression on request, in the environment that `estimators` makes.

Reads lines of JSON with the path of a split, ε and a seed; answers with accuracy and seconds.
"""

import json
import sys
import time
import warnings

import numpy as np


def main() -> None:
    """Answer until the input ends."""
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        with np.load(asked["path"]) as split:
            X, test_X, y, test_y = (split[f"arr_{i}"] for i in range(4))
        # Records of norm 1 suit it better than features from 0 to 1 with a norm of √d.
        X, test_X = (
            each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-9)
            for each in (X, test_X)
        )
        start = time.perf_counter()
        model = LogisticRegression(
            epsilon=asked["epsilon"],
            data_norm=1.0,
            max_iter=200,
            random_state=asked["seed"],
        ).fit(X, y)
        seconds = time.perf_counter() - start
        answer = {"accuracy": float(model.score(test_X, test_y)), "seconds": seconds}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
