"""HTML: simulations as one page that loads nothing from a network.

Files: page (template, style, scripts and data in one file), data (the data as plain values),
page.html, page.css, and the scripts: base, lanes, timeline, links, curve, tables, beside, main.
"""

from sley.report.html.page import Page, html_report

__all__ = ["Page", "html_report"]
