"""Runs the notebooks of the gallery again: ``python docs/gallery.py [NAME …]``, by default all.

A saved notebook has its outputs, and no times, machine names or versions of the run. Its last
picture is the one of the gallery's page.
"""

import os
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PICTURES = ROOT / "docs/images/gallery"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

_NO_WIDGETS = "ignore:IProgress not found"  # Jupyter has what tqdm misses here


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with its saved outputs."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def run(path: Path, directory: Path) -> nbformat.NotebookNode:
    """Return a notebook with fresh outputs, run in a directory."""
    notebook = read(path)
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=600, coalesce_streams=True,
        resources={"metadata": {"path": str(directory)}},
    )  # fmt: skip
    client.execute(env={**os.environ, "PYTHONWARNINGS": _NO_WIDGETS})
    notebook.metadata = nbformat.from_dict(METADATA)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _smaller(output.data["image/png"])
    return notebook


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """Return the pictures in a notebook, as PNG."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    found = [output.get("data", {}).get("image/png") for output in outputs]
    return [b64decode(picture) for picture in found if picture]


def _smaller(picture: str) -> str:
    """Return a picture, base64-encoded, with 64 colours."""
    image = Image.open(BytesIO(b64decode(picture))).convert("RGB")
    png = BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(png, "PNG", optimize=True)
    return b64encode(png.getvalue()).decode()


def main() -> None:
    """Run the notebooks that are named, and save them and their pictures."""
    names = sys.argv[1:]
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            with TemporaryDirectory() as place:
                notebook = run(path, Path(place))
            nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
            (PICTURES / f"{path.stem}.png").write_bytes(pictures(notebook)[-1])


if __name__ == "__main__":
    main()
