"""The picture of the packages is the one that the import contract gives."""

from docs import package_graph


def test_the_picture_is_that_of_the_contract() -> None:
    assert package_graph.PICTURE.read_text(encoding="utf-8") == package_graph.svg(), (
        "run python docs/package_graph.py"
    )


def test_every_package_is_in_the_picture() -> None:
    names = [name for row in package_graph.layers() for name in row]
    packages = {
        path.stem
        for path in (package_graph.ROOT / "src/dither").iterdir()
        if not path.name.startswith("_") and path.suffix in ("", ".py")
    }
    assert sorted(names) == sorted(packages)
    assert package_graph.without_torch() < packages
