from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.store import dirfd
from sessiond.trigrams import rows
from sessiond.trigrams.database import IndexDatabase
from sessiond.trigrams.text import match_expression
from sessiond.trigrams.text_blocks import TextBlock


@pytest.fixture
def folder_fd(tmp_path: Path) -> Iterator[int]:
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd:
        yield fd


def make_block(text: str, begin: int = 0, end: int = 10) -> TextBlock:
    return TextBlock(begin, end, text, 1, 2, 3)


def find(opened: IndexDatabase, text: str) -> list[tuple[int, int]]:
    expression = match_expression(text)
    assert expression is not None
    found = rows.find_blocks(opened, expression)
    assert found is not None
    return sorted((block.begin, block.end) for blocks in found.values() for block in blocks)


def fill(opened: IndexDatabase, *texts: str) -> None:
    opened.begin()
    row = rows.make_file(opened, "1:2")
    for number, text in enumerate(texts):
        rows.add_block(opened, row.id, make_block(text, number * 10, number * 10 + 10))
    opened.commit()


def test_it_finds_the_blocks_with_every_trigram_of_a_text(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(
        opened,
        'the platypus said "no"',
        "会议记录在这里",
        "a\0b platy",
        "\ud800 lone",
        "x" * 300_000 + " needle " + "y" * 300_000,
    )
    assert find(opened, "platypus") == [(0, 10)]
    assert find(opened, "aty") == [(0, 10), (20, 30)]
    assert find(opened, 'd "n') == [(0, 10)]
    assert find(opened, "议记录") == [(10, 20)]
    assert find(opened, "a\0b") == [(20, 30)]
    assert find(opened, "\ud800 l") == [(30, 40)]
    assert find(opened, "xx needle yy") == [(40, 50)]
    assert find(opened, "nowhere") == []
    assert match_expression("ab") is None
    opened.close(keep=True)


def test_what_was_closed_or_killed_is_there_at_the_next_start(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "first text")
    opened.close(keep=True)
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    assert find(opened, "first") == [(0, 10)]
    fill(opened, "second text")
    opened.close(keep=False)
