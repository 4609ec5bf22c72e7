"""The report of a run's folder, for people who have to answer for it."""

from dither.reports.run.gathering import run_report
from dither.reports.run.rendering import to_html, to_json, to_markdown, write_report
from dither.reports.run.report import RunReport

__all__ = ["RunReport", "run_report", "to_html", "to_json", "to_markdown", "write_report"]
