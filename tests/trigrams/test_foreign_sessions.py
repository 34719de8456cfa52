"""The index over sessions of other programs, as the sources show them."""

from __future__ import annotations

import os
from pathlib import Path

from support.followed_store import append
from support.foreign_corpus import write_corpus
from support.foreign_sessions import FollowedSources, followed_sources, key_of, pi_file, pi_line
from support.indexed_store import FILLER, find_missed, running_index, wait_ready, wait_until
from support.opencode_database import make_database

from sessiond.trigrams.index import TrigramIndex
from sessiond.trigrams.narrowing import NOT_NARROWED

# What turns of the programs say.
QUERIES = ["Let me look", "printed", "forty-two", "run the", "fill", "hello there"]


async def check_nothing_is_missed(followed: FollowedSources, index: TrigramIndex) -> None:
    sessions = list(followed.parts.store.catalog.every())
    for query in QUERIES:
        narrowed = index.narrow(query.lower())
        assert narrowed is not NOT_NARROWED
        assert [(one.key, missed) for one in sessions if (missed := find_missed(narrowed, one, query))] == []


async def test_sessions_of_every_program_are_indexed_and_followed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_corpus(home, 8, 0.3)
    pi_file(home, 200, "hello there", *([FILLER] * 3))
    (home / ".local/share/opencode").mkdir(parents=True)
    make_database(home / ".local/share/opencode/opencode.db").close()
    async with followed_sources(tmp_path, home) as followed, running_index(followed.parts.store) as index:
        await followed.wait_whole()
        await wait_ready(index)
        await check_nothing_is_missed(followed, index)
        session = followed.parts.session(key_of(200))
        blocks = index.narrow("hello there").find_in(session).blocks
        assert [(block.begin > 0, block.messages_before) for block in blocks] == [(True, 0)]
        path = next(home.rglob(f"*{key_of(200).partition(':')[2]}.jsonl"))
        append(path, b"".join(pi_line(f"{FILLER} {number}") for number in range(20)) + pi_line("forty-two"))
        await followed.wait_until(lambda: session.entry.message_count == 25)
        await wait_until(lambda: index.narrow("filler").find_in(session).indexed_to > 60_000)
        await check_nothing_is_missed(followed, index)
        data = path.read_bytes().replace(b"hello there", b"other words")
        path.with_name("new").write_bytes(data)
        os.rename(path.with_name("new"), path)
        inode = path.stat().st_ino
        # It goes and comes again, as another session.
        await followed.wait_until(
            lambda: inode in {one.entry.file.inode for one in followed.parts.store.catalog.foreign.values()}
        )
        await followed.wait_whole()
        await wait_ready(index)
        session = followed.parts.session(key_of(200))
        await wait_until(lambda: index.narrow("filler").find_in(session).indexed_to)
        assert not index.narrow("hello there").find_in(session).blocks
        await check_nothing_is_missed(followed, index)


async def test_files_that_are_kept_are_not_indexed_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = pi_file(home, 1, "hello there", *([FILLER] * 3))
    async with followed_sources(tmp_path, home, config="[sources]\nkeep = true") as followed:
        async with running_index(followed.parts.store) as index:
            await followed.wait_whole()
            await wait_ready(index)
            await followed.wait_until(lambda: list((tmp_path / "store" / "kept").rglob("*.jsonl")))
            before = index.status
            path.unlink()
            await followed.wait_until(lambda: "/store/kept/" in followed.parts.session(key_of(1)).path)
            await wait_until(lambda: index.status == before)
            await check_nothing_is_missed(followed, index)
