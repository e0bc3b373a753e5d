"""HTML: simulations as one page that needs no network."""

from sley.report.html.page import html_report

__all__ = ["html_report"]
