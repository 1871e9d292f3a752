"""A hook of mkdocs: pages of the repository's root join those of docs/, and links to other files become text.

`make site` calls it; a link inside the site stays a link, which mkdocs checks, headings included.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OF_THE_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(\[[^\[\]]*\]|\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root under their names in the site."""
    for name, source in OF_THE_ROOT.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text, whose links are relative to its place in the site."""
    return with_site_links(markdown, page.file.src_uri)


def with_site_links(markdown: str, name: str) -> str:
    """`markdown` of the page `name`; a link to a file of the repository outside the site becomes the link's text."""
    source = OF_THE_ROOT.get(name, f"docs/{name}")
    in_site = {path: page for page, path in OF_THE_ROOT.items()}

    def moved(link: re.Match[str]) -> str:
        words, target, heading = link[1], link[2], link[3] or ""
        if re.match(r"\w+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/") or path in in_site:
            page = in_site.get(path, path.removeprefix("docs/"))
            return f"{words}({posixpath.relpath(page, posixpath.dirname(name) or '.')}{heading})"
        return words.strip("[]") if (ROOT / path).exists() else link[0]

    return LINK.sub(moved, markdown)
