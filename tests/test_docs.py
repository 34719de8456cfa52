"""The pages: their links lead somewhere, and they name no machine. That the code agrees with them: test_project.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.docs_references import DOCS, PAGES, anchors, headings, in_code, in_page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = [str(pointer) for pointer in in_page(page) if pointer.problem is not None]
    assert not wrong, "\n".join(wrong)


def test_nothing_points_to_what_is_not_in_the_repository(tmp_path: Path) -> None:
    """The finder itself: a page that is not there, a heading that is not there, a reason without a place."""
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


def test_headings_have_the_anchors_that_code_hosts_give_them() -> None:
    page = DOCS / "protocol.md"
    assert "The agents' tools" in headings(page)
    assert {"the-agents-tools", "json-rpc-details", "the-first-byte-of-a-connection-chooses-the-dialect"} <= anchors(
        page
    )


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_names_no_place_of_somebodys_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "../reference" not in text
    assert "../shared" not in text
    assert not re.search(r"(?<![\w~}])/(?:home|work|root)/(?!agent\b)", text)
