"""The example of docs/sources.md is a dialect and a finder that work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.keys import SOURCES
from sessiond.model.record import BadLine
from sessiond.model.source_facts import SourceFacts
from sessiond.sources.table import SOURCE_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
SAMPLE = {"kind": "said", "by": "person", "text": "hello\nyou", "at": 1767323045000, "dir": "/work"}


def example(name: str) -> dict[str, Any]:
    """The names that the block after the path of a module defines."""
    block = re.search(rf"`sessiond/{name}`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None, name
    # Not through the file system: its names are resolved in the dict, as in a module.
    namespace: dict[str, Any] = {"__name__": "acorn"}
    exec(compile(block[1].replace("from __future__ import annotations\n", ""), name, "exec"), namespace)
    return namespace


DIALECT = example("model/dialects/acorn.py")["DIALECT"]


def test_the_dialect_of_the_example_reads_the_line_of_the_example() -> None:
    assert json.dumps({**SAMPLE, "text": "hello"}).replace(" ", "") in PAGE.replace(" ", "")
    record = DIALECT.parse(json.dumps(SAMPLE).encode())
    entry = DIALECT.fold(begin_foreign(SourceFacts(name="acorn"), "x"), record, 0, 1)
    assert (entry.message_count, entry.cwd, entry.updated_at) == (1, "/work", SAMPLE["at"])
    assert entry.source.title == "hello"
    assert DIALECT.text_in(json.dumps(SAMPLE).encode()) == SAMPLE["text"]
    other = DIALECT.fold(entry, DIALECT.parse(b'{"kind":"mood"}'), 9, 1)
    assert (other.source.unknown, other.message_count) == ({"mood": 1}, 1)


OBJECTS = st.dictionaries(st.sampled_from(["kind", "at", "dir"]), st.text() | st.integers() | st.none())


@given(st.binary(max_size=100) | OBJECTS.map(lambda value: json.dumps(value).encode()))
def test_the_dialect_of_the_example_reads_any_bytes(line: bytes) -> None:
    try:
        DIALECT.parse(line)
    except BadLine:
        return


def test_the_finder_of_the_example_finds_its_sessions(tmp_path: Path) -> None:
    finder = example("sources/acorn.py")
    found = finder["FINDER"].session_of("chats/abc.jsonl")
    assert found is not None
    assert found.native_id == "abc"
    assert finder["FINDER"].session_of("auth.json") is None
    assert finder["find_root"]({}, tmp_path).path == tmp_path / ".acorn"
    assert finder["find_root"]({"ACORN_HOME": "/x"}, tmp_path).path == Path("/x")


def test_the_page_names_every_source() -> None:
    assert set(SOURCES) == set(SOURCE_NAMES)
    assert all(f"| `{name}` |" in PAGE for name in SOURCES)
