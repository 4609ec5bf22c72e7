import os
import stat
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dither.reports import audit_figure, save_figure, theory_figure


def test_the_figure_shows_what_it_was_given() -> None:
    curves = {"uniform": np.array([3.0, 2.0]), "matched": np.array([2.0, 2.5])}
    spent = {"uniform": np.array([1.0, 4.0]), "matched": np.array([2.0, 4.0])}
    figure = theory_figure(reaching=curves, spent=spent, schedule="mine")
    noise, schedules, privacy = figure.axes
    assert [line.get_ydata() for line in noise.get_lines()] == [
        pytest.approx(curves["matched"]),
        pytest.approx(curves["uniform"]),
    ]
    assert [line.get_ydata() for line in privacy.get_lines()] == [
        pytest.approx(spent["matched"]),
        pytest.approx(spent["uniform"]),
    ]
    assert [len(np.asarray(line.get_ydata())) for line in schedules.get_lines()] == [
        39_200,
        11_760,
        23_520,
        39_200,
    ]
    for axes in figure.axes:
        assert axes.get_ylabel()
    assert noise.get_xlabel()
    assert schedules.get_xlabel()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_saves_whole_files_with_the_users_rights(tmp_path: Path, suffix: str) -> None:
    path = save_figure(Figure(), tmp_path / f"figure.{suffix}")
    assert path.stat().st_size > 0
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")

    def fail(self: Figure, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        save_figure(Figure(), target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_attack_is_drawn_below_what_is_allowed() -> None:
    roc = np.array([[0.0, 0.5, 1.0], [0.0, 0.6, 1.0]])
    figure = audit_figure(roc, lambda alpha: np.minimum(2.0 * alpha, 1.0), "fine")
    for axes in figure.axes:
        guessing, allowed, attack = axes.get_lines()
        assert np.array_equal(np.asarray(guessing.get_xdata()), np.asarray(guessing.get_ydata()))
        x = np.asarray(allowed.get_xdata())
        np.testing.assert_allclose(np.asarray(allowed.get_ydata()), np.minimum(2.0 * x, 1.0))
        assert np.array_equal(np.asarray(attack.get_ydata()), roc[1])
    assert len(audit_figure(roc, None, "nothing is claimed").axes[0].get_lines()) == 2
