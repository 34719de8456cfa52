"""Sessions in the database of opencode as the catalog, history and subscribers see them: a real database, while another
connection writes to it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.foreign_sessions import FollowedSources, followed_sources, shown_messages
from support.opencode_database import make_database, session_titled
from support.rows import check_each

from sessiond.model.event import ResyncEvent
from sessiond.sessions import history, search
from sessiond.sources.event_files import EventFiles
from sessiond.sources.finder import SourceRoot
from sessiond.sources.table import root_of
from sessiond.store import dirfd

TOOL_TURN = [
    "user: please RUN echo forty-two",
    """assistant: (I shall run it.) | Let me look. | bash{"command":"echo forty-two","description":"run it"}""",
    "toolResult: forty-two",
    "assistant: The command printed: forty-two",
]


def path_in(home: Path) -> Path:
    return home / ".local" / "share" / "opencode" / "opencode.db"


class Program:
    """What opencode does to its database."""

    def __init__(self, home: Path) -> None:
        self.path = path_in(home)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = make_database(self.path)
        self.connection.execute("pragma foreign_keys = off")
        self.connection.execute("pragma journal_mode = wal")
        self.connection.commit()

    def id_of(self, title: str) -> str:
        return session_titled(self.connection, title)

    def say(self, session_id: str, role: str, *texts: str, number: int = 1) -> None:
        """Record a message, part by part, in one transaction each."""
        message_id = f"msg_new{number}"
        info = {"id": message_id, "role": role, "time": {"created": 1_800_000_000_000 + number}}
        self.connection.execute(
            "insert into message values (?, ?, 1, 1, ?)", (message_id, session_id, json.dumps(info))
        )
        self.add_event(session_id, "message.updated.1", {"info": info})
        for place, text in enumerate(texts):
            part = {"id": f"prt_new{number}{place}", "messageID": message_id, "type": "text", "text": text}
            self.add_event(session_id, "message.part.updated.1", {"part": part})

    def add_event(self, session_id: str, kind: str, data: dict[str, Any]) -> None:
        query = "select coalesce(max(seq), -1) + 1 from event where aggregate_id = ?"
        (seq,) = self.connection.execute(query, (session_id,)).fetchone()
        values = f"evt_{session_id}{seq}", session_id, seq, kind, json.dumps(data)
        self.connection.execute("insert into event values (?, ?, ?, ?, ?)", values)
        self.connection.execute("update session set time_updated = time_updated + 1 where id = ?", (session_id,))
        self.connection.commit()


@pytest.fixture
def program(home: Path) -> Iterator[Program]:
    program = Program(home)
    with closing(program.connection):
        yield program


@pytest.fixture
async def followed(tmp_path: Path, home: Path, program: Program) -> AsyncIterator[FollowedSources]:
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        yield followed


async def test_a_session_that_somebody_wants_to_read_is_put_together_before_it_is_opened_on_the_loop(
    followed: FollowedSources, program: Program
) -> None:
    session = followed.parts.session(f"opencode:{program.id_of('count birds')}")
    files = session.folder.made
    assert isinstance(files, EventFiles)
    files.close()  # as when others were read since
    assert not files.is_kept(session.place)
    await followed.sources.complete(session)
    assert files.is_kept(session.place)


async def test_the_sessions_of_the_database_have_rows_and_histories(
    followed: FollowedSources, program: Program
) -> None:
    ids = {one for (one,) in program.connection.execute("select id from session")}
    assert followed.keys == {f"opencode:{one}" for one in ids}
    child, parent = program.id_of("count birds"), program.id_of("Let me look.")
    session = followed.parts.session(f"opencode:{child}")
    entry = session.entry
    assert (entry.session_id, entry.spawned_by, entry.cwd) == (child, f"opencode:{parent}", "/workspace")
    assert (entry.message_count, entry.input_tokens, entry.model) == (4, 120, "claude-sonnet-4-5")
    assert entry.source is not None and entry.source.title == "count birds (@general subagent)"
    assert await followed.read_history(session.key) == TOOL_TURN
    assert await followed.read_history(session.key, limit=2) == TOOL_TURN[2:]


async def test_what_the_program_records_reaches_followers_part_by_part(
    followed: FollowedSources, program: Program
) -> None:
    child = program.id_of("count birds")
    _, reader = followed.parts.follow(f"opencode:{child}")
    program.say(child, "user", "and again")
    program.say(child, "assistant", "One.", "Two.", number=2)
    expected = [(5, "user: and again"), (6, "assistant: One."), (6, "assistant: One. | Two.")]
    await reader.wait_until(
        lambda: (
            [one for one in shown_messages(reader) if one in expected] != []
            and shown_messages(reader)[-1] == expected[-1]
        )
    )
    assert shown_messages(reader)[0] == expected[0]
    assert not any(isinstance(event, ResyncEvent) for event in reader.events)
    assert (await followed.read_history(f"opencode:{child}"))[4:] == ["user: and again", "assistant: One. | Two."]


async def test_a_search_finds_what_was_said_with_its_number(followed: FollowedSources, program: Program) -> None:
    session = followed.parts.session(f"opencode:{program.id_of('count birds')}")
    query = search.Query(text="printed: forty", limit=9, shown=lambda text: text)
    looking = search.Search(followed.parts.store, [session], query)
    for _ in looking.steps():
        pass
    assert [match.listed for match in looking.matches()] == [4]


async def test_a_session_that_begins_and_one_that_is_removed(followed: FollowedSources, program: Program) -> None:
    gone = program.id_of("Birds in the yard")
    columns = [row[1] for row in program.connection.execute("pragma table_info(session)")]
    values = ", ".join("'ses_new'" if name == "id" else name for name in columns)
    program.connection.execute(f"insert into session select {values} from session where id = ?", (gone,))
    program.add_event("ses_new", "session.created.1", {"info": {"id": "ses_new", "directory": "/new"}})
    program.say("ses_new", "user", "hello", number=3)
    await followed.wait_until(lambda: "opencode:ses_new" in followed.keys)
    await followed.wait_until(lambda: followed.parts.session("opencode:ses_new").entry.message_count == 1)
    program.connection.execute("delete from session where id = ?", (gone,))
    program.connection.commit()
    await followed.wait_until(lambda: f"opencode:{gone}" not in followed.keys)


async def test_places_mean_the_same_after_a_restart_and_the_database_is_not_changed(
    tmp_path: Path, home: Path, program: Program
) -> None:
    key = f"opencode:{program.id_of('count birds')}"
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        session = followed.parts.session(key)
        page = await history.page(followed.parts.store, session, limit=2, include_tools=True, max_bytes=1 << 20)
        before = session.entry
    program.connection.close()
    content = path_in(home).read_bytes()
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        assert followed.parts.session(key).entry == before
        assert await followed.read_history(key, before=page.next_cursor) == TOOL_TURN[:2]
    assert path_in(home).read_bytes() == content
    assert sorted(os.listdir(path_in(home).parent)) == ["opencode.db"]


async def test_a_database_that_appears_later_and_one_that_is_none(tmp_path: Path, home: Path) -> None:
    path_in(home).parent.mkdir(parents=True)
    path_in(home).write_bytes(b"no database at all")
    async with followed_sources(tmp_path, home) as followed:
        assert followed.keys == set()
        assert any("opencode.db" in f"{finding.thing} {finding.what}" for finding in followed.sources.findings())
        path_in(home).unlink()
        with closing(Program(home).connection):
            await followed.wait_until(lambda: len(followed.keys) == 5)


@pytest.mark.parametrize("content", [b"no database at all", None])
def test_what_is_no_database_of_opencode_is_no_temporary_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "opencode.db"
    if content is not None:
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("create table other (a)")
            connection.commit()
    root = dirfd.open_root(str(tmp_path))
    files = EventFiles(root, str(tmp_path), "opencode.db")
    for ask in (files.list_sessions, files.find_changed, lambda: files.status("opencode.db/ses_1")):
        with pytest.raises(OSError, match="the database cannot be read") as caught:
            ask()
        assert not dirfd.is_passing(caught.value)
    os.close(root)


def test_a_database_that_is_locked_is_a_temporary_error(tmp_path: Path) -> None:
    connection = make_database(tmp_path / "opencode.db")
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma locking_mode = exclusive")
    connection.execute("create table other (a)")
    connection.commit()
    root = dirfd.open_root(str(tmp_path))
    files = EventFiles(root, str(tmp_path), "opencode.db")
    with pytest.raises(OSError, match="the database cannot be read") as caught:
        files.list_sessions()
    assert dirfd.is_passing(caught.value)
    connection.close()
    assert len(files.list_sessions()) == 5
    os.close(root)


def test_a_link_in_the_place_of_the_database_is_not_followed(tmp_path: Path) -> None:
    make_database(tmp_path / "other.db").close()
    (tmp_path / "opencode.db").symlink_to(tmp_path / "other.db")
    root = dirfd.open_root(str(tmp_path))
    files = EventFiles(root, str(tmp_path), "opencode.db")
    with pytest.raises(dirfd.SymlinkRefused):
        files.list_sessions()
    os.close(root)


def test_the_same_rows_give_the_same_bytes_however_they_came(tmp_path: Path) -> None:
    connection = make_database(tmp_path / "opencode.db")
    session_id = session_titled(connection, "count birds")
    place, root = f"opencode.db/{session_id}", dirfd.open_root(str(tmp_path))

    def read(files: EventFiles) -> bytes:
        with dirfd.closing(files.open(place)) as fd:
            return os.pread(fd, 1 << 20, 0)

    whole = read(EventFiles(root, str(tmp_path), "opencode.db"))
    rows = connection.execute("select * from event where aggregate_id = ?", (session_id,)).fetchall()
    connection.execute("delete from event where aggregate_id = ? and seq >= 10", (session_id,))
    connection.commit()
    growing = EventFiles(root, str(tmp_path), "opencode.db")
    first = read(growing)
    assert first and whole.startswith(first) and first != whole
    connection.executemany("insert into event values (?, ?, ?, ?, ?)", [row for row in rows if row[2] >= 10])
    connection.commit()
    assert read(growing) == whole
    assert all(msgspec.json.decode(line)["seq"] == number for number, line in enumerate(whole.splitlines()))
    with pytest.raises(FileNotFoundError):
        growing.open("opencode.db/ses_none")
    growing.close()
    connection.close()
    os.close(root)


@check_each(
    ("environ", "path", "name"),
    [
        ({}, "/home/me/.local/share/opencode", "opencode.db"),
        ({"XDG_DATA_HOME": "/data"}, "/data/opencode", "opencode.db"),
        ({"OPENCODE_DB": "/else/where.db"}, "/else", "where.db"),
        ({"OPENCODE_DB": "opencode-dev.db"}, "/home/me/.local/share/opencode", "opencode-dev.db"),
        ({"OPENCODE_DB": ":memory:"}, "/home/me/.local/share/opencode", "opencode.db"),
    ],
)
def test_where_the_database_is(environ: dict[str, str], path: str, name: str) -> None:
    root = root_of("opencode", environ, Path("/home/me"))
    assert isinstance(root, SourceRoot)
    assert (str(root.path), root.finder.database) == (path, name)
