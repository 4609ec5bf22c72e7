"""Every planted mistake is caught, by the audit or by a test of the suite that is named for it."""

from pathlib import Path

import pytest
from tests.planted.bug import AUDIT, Bug
from tests.planted.bugs import BUGS

ROOT = Path(__file__).parents[2]
BY_NAME = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
AUDITED = [bug for bug in BUGS if bug.caught_by == AUDIT]


# What a mistake in a planted function itself would look like.
_MISTAKES = ("AttributeError", "ImportError", "KeyError", "NameError", "TypeError")


class _Outcomes:
    """What came of the tests that were run."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else str(crash.message)
            is_mistaken = report.when != "call" or why.startswith(_MISTAKES)
            (self.broken if is_mistaken else self.failed).append(f"{report.nodeid}: {why}")


def failures(nodeid: str) -> list[str]:
    """Run a test of the suite in this process and return the first case that failed."""
    seen = _Outcomes()
    # Both plugins collect garbage after every session, which would take half of the time.
    without = ["-pno:cacheprovider", "-pno:unraisableexception", "-pno:threadexception"]
    options = ["-qx", "--no-cov", *without, "--rootdir"]
    code = pytest.main([*options, str(ROOT), str(ROOT / nodeid)], plugins=[seen])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), nodeid
    assert not seen.broken, seen.broken
    return seen.failed


@BY_NAME
def test_every_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    if bug.caught_by == AUDIT:
        assert bug.is_refuted()
    else:
        assert failures(bug.caught_by)


@pytest.mark.parametrize("bug", AUDITED, ids=lambda bug: bug.name)
def test_the_audit_refutes_nothing_without_the_bug(bug: Bug) -> None:
    assert not bug.is_refuted()


def test_the_tests_that_catch_bugs_pass_without_them() -> None:
    assert not failures("tests/training/test_released_step.py::test_unseeded_steps_never_repeat")
