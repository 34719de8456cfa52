"""The pages of docs/: their links resolve and name no paths of a machine. test_project.py compares them with code."""

from __future__ import annotations

import re
from pathlib import Path

from support.docs_references import DOCS, PAGES, anchors, headings, in_code, in_page
from support.rows import check_each


@check_each("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_resolves_to_a_file_and_a_heading(page: Path) -> None:
    wrong = [str(pointer) for pointer in in_page(page) if pointer.problem is not None]
    assert not wrong, "\n".join(wrong)


def test_source_lines_that_do_not_resolve_are_found(tmp_path: Path) -> None:
    """`in_code` itself: a missing page, a missing heading, a source that is neither."""
    module = tmp_path / "module.py"
    module.write_text(
        '"""Source: runs.md,\n"Announce"; runs.md, "No such heading".\n"""\n'
        '# Source: nowhere.md, "Keys".\n# Source: store.md.\n# Source: RFC 8742.\n# Source: hearsay.\n'
    )
    found = [(pointer.target, pointer.problem) for pointer in in_code(module)]
    assert found == [
        ("Source: store.md", 'names no heading: write Source: page.md, "Heading"'),
        ("Source: hearsay. ", "names neither a page of docs/ nor a specification"),
        ('runs.md, "Announce"', None),
        ('runs.md, "No such heading"', "docs/runs.md has no such heading"),
        ('nowhere.md, "Keys"', "there is no docs/nowhere.md"),
        ("store.md", None),
    ]


def test_headings_get_the_anchors_that_code_hosts_give_them() -> None:
    page = DOCS / "protocol.md"
    assert "The agents' tools" in headings(page)
    assert {"the-agents-tools", "json-rpc-details", "the-first-byte-of-a-connection-chooses-the-dialect"} <= anchors(
        page
    )


@check_each("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_no_page_names_a_path_of_a_developers_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "../reference" not in text
    assert "../shared" not in text
    assert not re.search(r"(?<![\w~}])/(?:home|work|root)/(?!agent\b)", text)
