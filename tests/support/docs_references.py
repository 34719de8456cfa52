"""References to the pages of this repository: `Source:` lines and names of pages in the code, links in the pages.

A page is named as `runs.md, "Announce"`: the heading "Announce" of `docs/runs.md`. Links are Markdown's, to a file of
the repository and to a heading's anchor. Reads text; knows no page by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]

# Sources other than pages: public specifications.
_SPECIFICATION = re.compile(
    r"RFC \d+|[a-z_.]+\(\d\)|the MCP specification|the Agent Client Protocol|HTML Living Standard|man\(7\)"
)
# Without `class Source:`, which is followed by a docstring.
_SOURCE = re.compile(r'\bSource: (?!""")')
_PAGE = re.compile(r'(?<![\w/.-])([a-z]+\.md)((?:[,;] (?:and )?"[^"\n]{1,120}")*)')
_QUOTED = re.compile(r'"([^"]+)"')
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_LINE_BREAK = re.compile(r"[ \t]*\n[ \t]*(?:# )?")


class Pointer(msgspec.Struct, frozen=True):
    """A reference in `file` to a place in the repository."""

    file: Path
    target: str
    problem: str | None

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.target}: {self.problem}"


def in_code(file: Path) -> Iterator[Pointer]:
    """Every `Source:` and every page that a module's docstrings and comments name."""
    text = _LINE_BREAK.sub(" ", file.read_text(encoding="utf-8"))
    for found in _SOURCE.finditer(text):
        rest = text[found.end() : found.end() + 160]
        page = _PAGE.match(rest)
        if page is None and not _SPECIFICATION.match(rest):
            yield Pointer(file, f"Source: {rest[:40]}", "names neither a page of docs/ nor a specification")
        elif page is not None and not page[2]:
            yield Pointer(file, f"Source: {page[1]}", 'names no heading: write Source: page.md, "Heading"')
    for page in _PAGE.finditer(text):
        for heading in _QUOTED.findall(page[2]) or [None]:
            target = page[1] if heading is None else f'{page[1]}, "{heading}"'
            yield Pointer(file, target, _problem(DOCS / page[1], heading))


def in_page(page: Path) -> Iterator[Pointer]:
    """Every link of a page that leads into the repository."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.is_relative_to(ROOT) or not file.exists():
            yield Pointer(page, target, "there is no such file in the repository")
        elif anchor and anchor not in anchors(file):
            yield Pointer(page, target, f"{file.name} has no heading with this anchor")
        else:
            yield Pointer(page, target, None)


def _problem(page: Path, heading: str | None) -> str | None:
    if not page.exists():
        return f"there is no docs/{page.name}"
    if heading is not None and heading not in headings(page):
        return f"docs/{page.name} has no such heading"
    return None


@cache
def headings(page: Path) -> tuple[str, ...]:
    """The headings of a page as they are read, in their order."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return tuple(heading.replace("`", "") for heading in _HEADING.findall(text))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as code hosts make them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in headings(page):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = seen[anchor] = seen.get(anchor, -1) + 1
        found.add(anchor if not number else f"{anchor}-{number}")
    return frozenset(found)
