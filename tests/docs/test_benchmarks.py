from benchmarks.clipping_report import DOCS, with_tables


def test_the_tables_of_the_benchmarks_are_those_of_the_records() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert with_tables(page) == page
    wrong = page.replace("| GPT-2 |", "| GPT-3 |")
    assert wrong != page
    assert with_tables(wrong) == page
