"""Reports of runs: planned and measured figures as HTML, Markdown or JSON.

    facts       what a report is made from, read once: `RunReport`
    sections/   from facts to blocks (tables, figures, texts), one file for each part
    blocks      the blocks; figures: their values as people read them
    page        blocks as one HTML file; charts/ draws; page.html and page.css are its shape
    markdown, document   the same blocks as Markdown and JSON

Pure functions from stored facts: nothing here asks a server or writes a file.
"""

from qserve.report.document import to_json
from qserve.report.facts import RunReport, read_report
from qserve.report.markdown import to_markdown
from qserve.report.page import to_html

__all__ = ["RunReport", "read_report", "to_html", "to_json", "to_markdown"]
