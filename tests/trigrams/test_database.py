from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sampling import amount

from sessiond.store import dirfd
from sessiond.trigrams import database, rows
from sessiond.trigrams.database import IndexDatabase, IndexDoubt, IndexTrouble
from sessiond.trigrams.text import match_expressions
from sessiond.trigrams.text_blocks import TextBlock


@pytest.fixture
def folder_fd(tmp_path: Path) -> Iterator[int]:
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd:
        yield fd


def make_block(text: str, begin: int = 0, end: int = 10) -> TextBlock:
    return TextBlock(begin, end, text, 1, 2, 3, "0:0")


def find(opened: IndexDatabase, text: str) -> list[tuple[int, int]]:
    found = rows.find_blocks(opened, match_expressions(text), 1000)
    assert found is not None
    return sorted((block.begin, block.end) for blocks in found.values() for block in blocks)


def fill(opened: IndexDatabase, *texts: str) -> None:
    opened.begin()
    row = rows.make_file(opened, "1:2")
    for number, text in enumerate(texts):
        rows.add_block(opened, row.id, make_block(text, number * 10, number * 10 + 10))
    opened.commit()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_all_files_are_known_however_many_are_read_at_once(
    folder_fd: int, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_FILES_AT_ONCE", 2)
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    opened.begin()
    made = [rows.make_file(opened, f"1:{number}") for number in range(count)]
    assert list(rows.files(opened)) == made
    for row in made[:2]:
        rows.drop_file(opened, row.id)
    assert list(rows.files(opened)) == made[2:]
    opened.close(keep=False)


def test_only_while_all_files_are_read_is_little_kept_of_what_is_read(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "text")
    [[usual]] = opened.run("pragma cache_size")
    found = rows.files(opened)
    next(found)
    [[small]] = opened.run("pragma cache_size")
    assert list(found) == []
    # In KiB where they are below zero.
    assert usual < small < 0
    assert opened.run("pragma cache_size") == [(usual,)]
    opened.close(keep=False)


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
    assert match_expressions("ab") == []
    opened.close(keep=True)


def test_blocks_that_have_only_the_rarest_parts_of_a_text_are_left_out_unless_they_are_few(
    folder_fd: int, tmp_path: Path
) -> None:
    text = "a quartz for zebras"
    rarest = re.findall('"(...)"', match_expressions(text)[0])
    for decoys, found in ((3, 4), (4, 1), (300, 1)):
        opened = IndexDatabase(folder_fd, tmp_path, "v1", f"{decoys}.sqlite")
        fill(opened, *([" | ".join(rarest)] * decoys), f"She has {text}.")
        assert len(find(opened, text)) == found, decoys
        assert find(opened, text)[-1] == (decoys * 10, decoys * 10 + 10)
        opened.close(keep=False)


def test_what_was_closed_or_killed_is_there_at_the_next_start(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "first text")
    opened.close(keep=True)
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    assert find(opened, "first") == [(0, 10)]
    fill(opened, "second text")
    opened.close(keep=False)


def test_after_a_kill_at_any_moment_it_goes_on_from_the_last_commit(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    kills: list[tuple[Path, list[tuple[int, int]]]] = []

    def kill(expected: list[tuple[int, int]]) -> None:
        # What a kill leaves is what another process sees of the files.
        copy = tmp_path / f"killed {len(kills)}"
        copy.mkdir()
        for path in tmp_path.glob("search.sqlite*"):
            shutil.copy2(path, copy)
        kills.append((copy, expected))

    kill([])
    for number in range(4):
        before = kills[-1][1]
        opened.begin()
        kill(before)
        row = rows.make_file(opened, f"{number}")
        rows.add_block(opened, row.id, make_block(f"platypus {number} " + "x y z " * 50_000, number))
        kill(before)
        opened.commit()
        kill([*before, (number, 10)])
        if number % 2:
            opened.checkpoint()
            kill(kills[-1][1])
    opened.close(keep=True)
    kill(kills[-1][1])
    for copy, expected in kills:
        with dirfd.closing(dirfd.open_root(copy)) as fd:
            opened = IndexDatabase(fd, copy, "v1")
            assert find(opened, "platypus") == expected
            opened.close(keep=False)


def test_what_was_in_use_when_the_machine_went_down_is_not_used(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "first text")
    opened.close(keep=True)
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    opened.begin()
    opened.put_about(boot="another start of the machine")
    opened.commit()
    opened.checkpoint()
    opened.close(keep=False)
    with pytest.raises(IndexDoubt, match="went down"):
        IndexDatabase(folder_fd, tmp_path, "v1")
    database.remove(folder_fd, database.NAME)
    # One that was closed survives it.
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "first text")
    opened.put_about(boot="another start of the machine")
    opened.close(keep=True)
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    assert find(opened, "first") == [(0, 10)]
    opened.close(keep=True)


def test_another_version_and_a_second_user_are_refused(folder_fd: int, tmp_path: Path) -> None:
    opened = IndexDatabase(folder_fd, tmp_path, "v1")
    fill(opened, "first text")
    with pytest.raises(IndexTrouble, match="locked"):
        IndexDatabase(folder_fd, tmp_path, "v1")
    opened.close(keep=True)
    with pytest.raises(IndexDoubt, match="another version"):
        IndexDatabase(folder_fd, tmp_path, "v2")


@settings(max_examples=amount(400, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), data=st.binary(min_size=1, max_size=200), cut=st.booleans())
def test_any_damage_is_noticed(tmp_path_factory: pytest.TempPathFactory, place: int, data: bytes, cut: bool) -> None:
    folder = tmp_path_factory.mktemp("store")
    with dirfd.closing(dirfd.open_root(folder)) as folder_fd:
        opened = IndexDatabase(folder_fd, folder, "v1")
        fill(opened, "first text")
        opened.close(keep=True)
        path = folder / database.NAME
        place %= path.stat().st_size
        with path.open("r+b") as file:
            if cut:
                file.truncate(place)
            else:
                file.seek(place)
                file.write(data)
        try:
            opened = IndexDatabase(folder_fd, folder, "v1")
        except IndexDoubt:
            return
        assert list(rows.files(opened)) == [], "only an empty one is begun again without a word"
        opened.close(keep=False)
