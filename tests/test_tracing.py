import numpy as np
from tests.tracing import traced_lines


def test_a_loop_over_the_steps_is_found() -> None:
    def loop(steps: int) -> None:
        for _ in range(steps):
            pass

    assert traced_lines(lambda: loop(1000)) > traced_lines(lambda: loop(10)) + 900
    assert traced_lines(lambda: np.arange(1000)) == traced_lines(lambda: np.arange(10))
