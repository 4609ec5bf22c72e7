"""What the page would send."""

from typing import Any

from dither.explorer import settings


def texts(**changed: str) -> dict[str, Any]:
    """Return the fields of a small run, some of them changed."""
    small = {"batch_size": "2000", "epochs": "2", "schedule": "linear"}
    given = {**settings.DEFAULTS, **small, **changed}
    parameters = settings.form()["parameters"][given["schedule"]]
    return {**given, "parameters": changed.get("parameters", parameters)}
