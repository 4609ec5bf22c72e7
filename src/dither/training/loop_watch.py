"""Whether a loop does the same in every step, with the same numbers.

The size of a drawn batch tells whether a record is in it, and Python code can use it unseen: in a
branch, in a factor. So the losses of every step have to be computed by the same calls, with numbers
that are always the same, or always the number of rows.
"""

from dither.training.errors import StepError
from dither.training.tape import Tape


class LoopWatch:
    """What the steps of a run have done so far.

    Args:
        sizes_vary: whether steps draw different numbers of records.
    """

    def __init__(self, *, sizes_vary: bool) -> None:
        self._sizes_vary = sizes_vary
        self._accepts_another = True
        self._kinds: dict[object, list[set[str]]] = {}
        self._first: dict[object, tuple[float, ...]] = {}

    def accept(self) -> None:
        """Let the next step compute its losses in another way."""
        self._accepts_another = True

    def look(self, tape: Tape) -> None:
        """Raise if a step does what no step before it did."""
        key = tape.key
        numbers = tuple(number for number, _ in tape.numbers)
        if key not in self._kinds:
            if not self._accepts_another:
                raise StepError(
                    "the losses are computed by other calls than in the steps before: if that is "
                    "decided by public values, such as the number of the step, and not by the "
                    "batch or its size, call private.accept_loop() before this step"
                )
            self._accepts_another = False
            self._kinds[key] = [{"constant", "rows"} for _ in numbers]
            self._first[key] = numbers
        found = zip(self._kinds[key], self._first[key], tape.numbers, strict=True)
        for kinds, first, (now, is_for_the_model) in found:
            if now != first:
                kinds.discard("constant")
            if now != tape.rows:
                kinds.discard("rows")
            if not kinds:
                raise StepError(
                    f"a number in the losses has changed from {first:g} to {now:g} since an "
                    "earlier step: if it comes from the batch, such as its size, leave it out; if "
                    "it is public, declare it with private.public(number)"
                )
            if is_for_the_model and self._sizes_vary and kinds == {"rows"}:
                raise StepError(
                    f"the model was called with the number of rows, {now:g}: it tells of other "
                    "records; let the model do without it"
                )
