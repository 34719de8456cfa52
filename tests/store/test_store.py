"""The async interface of the store: what is acknowledged is stored, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from support.store_listeners import SilentListener

from sessiond.errors import InvalidParams, LimitExceeded, Stopping, StorageError, TranscriptMissing
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules
from sessiond.store import dirfd, index
from sessiond.store.catalog import Session
from sessiond.store.cursor import Position
from sessiond.store.paging import MessagePage
from sessiond.store.scan import Problem
from sessiond.store.shown_page import PageRequest, ShownPage
from sessiond.store.store import Custom, Message, SessionStore, open_store

KEY = "agent:main:main"
NOW = 1_795_300_000_000


def user(text: str) -> Message:
    return Message({"role": "user", "content": text})


def file_of(store: SessionStore, session: Session) -> Path:
    return store.path / session.path


def lines_of(store: SessionStore, session: Session) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file_of(store, session).read_text().splitlines()]


def texts(page: MessagePage) -> list[str]:
    return [json.loads(line.record.message or b"")["content"] for line, _ in page.lines if line.record]


def contents(page: ShownPage) -> list[tuple[int, str]]:
    said = [json.loads(bytes(one))["content"] for one in page.messages.data]
    return list(zip(page.messages.seqs, said, strict=True))


async def newest(store: SessionStore, session: Session) -> MessagePage:
    return await store.page(session, lambda record: True, limit=100, max_bytes=1 << 20)


async def shown(store: SessionStore, session: Session, limit: int, before: Position) -> ShownPage:
    asked = PageRequest(end=before.offset, end_seq=before.seq, limit=limit, max_bytes=1 << 20)
    return await store.shown_page(session, asked, lambda page: page)


async def save(store: SessionStore) -> None:
    for folder in store.dirty_folders():
        await store.save(folder)


def entries(store: SessionStore) -> dict[str, Entry]:
    return {session_id: session.entry for session_id, session in store.catalog.by_id.items()}


async def test_a_new_session_is_one_file_with_its_header_and_first_records(opener):
    async with opener() as store:
        session, written = await store.create(
            KEY, "main", [user("hi"), Custom("sessiond/entry", {"label": "x"})], cwd="/w", spawned_by="agent:main:boss"
        )
        assert (session.key, session.path) == (KEY, f"agents/main/sessions/{session.session_id}.jsonl")
        assert lines_of(store, session) == [
            {
                "type": "session",
                "version": 3,
                "id": session.session_id,
                "timestamp": "2026-11-21T22:26:40.000Z",
                "cwd": "/w",
                "sessionKey": KEY,
                "agentId": "main",
                "spawnedBy": "agent:main:boss",
            },
            {
                "type": "message",
                "id": "0000000000000001",
                "parentId": None,
                "timestamp": "2026-11-21T22:26:40.000Z",
                "message": {"role": "user", "content": "hi"},
            },
            {
                "type": "custom",
                "customType": "sessiond/entry",
                "data": {"label": "x"},
                "id": "0000000000000002",
                "parentId": "0000000000000001",
                "timestamp": "2026-11-21T22:26:40.000Z",
            },
        ]
        content = file_of(store, session).read_bytes()
        assert [json.loads(content[one.offset : one.end])["id"] for one in written] == [one.id for one in written]
        assert store.catalog.by_key[KEY] is session
        assert session.entry == Entry(
            session_id=session.session_id,
            session_key=KEY,
            created_at=NOW,
            updated_at=NOW,
            cwd="/w",
            spawned_by="agent:main:boss",
            label="x",
            task="hi",
            message_count=1,
            file=session.entry.file,
        )


async def test_the_parent_of_an_append_is_the_last_record_even_if_a_stranger_wrote_it(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        await store.append(session, [user("one"), user("two")])
        await store.append(session, [user("three")])
        with file_of(store, session).open("a") as stranger:
            stranger.write('{"type":"message","id":"str","parentId":"x","message":{"role":"user","content":"hey"}}\n')
        store.read_new(session)
        await store.append(session, [user("four")])
        assert [(line["id"], line["parentId"]) for line in lines_of(store, session)[1:]] == [
            ("0000000000000001", None),
            ("0000000000000002", "0000000000000001"),
            ("0000000000000003", "0000000000000002"),
            ("str", "x"),
            ("0000000000000004", "str"),
        ]


async def test_append_later_reports_the_ids_once_the_records_are_folded(opener):
    async with opener() as store:
        session, _ = await store.create("agent:main:main", "main")
        reported: list[tuple[list[str], object, int]] = []
        done = trio.Event()

        def tell(ids: list[str], error: object) -> None:
            reported.append((ids, error, session.in_flight))
            done.set()

        store.append_later(session, store.make_drafts([user("one"), user("two")]), tell)
        assert reported == []
        await done.wait()
        assert [line["id"] for line in lines_of(store, session)[1:]] == reported[0][0]
        assert reported[0][1:] == (None, 0)


async def test_appending_nothing_writes_nothing(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        before = file_of(store, session).read_bytes()
        assert await store.append(session, []) == []
        assert file_of(store, session).read_bytes() == before


async def test_concurrent_appends_stay_in_order_and_share_syncs(tmp_path):
    count = 200
    async with open_store(
        tmp_path / "store", listener=SilentListener, durable=True, record_limit=1 << 20, rules=KeyRules()
    ) as store:
        sessions = [(await store.create(f"agent:main:cron:{n}", "main"))[0] for n in range(2)]
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(store.append, sessions[number % 2], [user(str(number))])
        assert store.committer.syncs < count / 4
        for session in sessions:
            lines = lines_of(store, session)[1:]
            assert len(lines) == count / 2
            assert [line["parentId"] for line in lines] == [None, *(line["id"] for line in lines[:-1])]


async def test_a_torn_line_does_not_affect_later_appends(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("one")])
        with file_of(store, session).open("ab") as torn:
            torn.write(b'{"type":"message","id":"half')
        await store.append(session, [user("two")])
        page = await newest(store, session)
        assert (texts(page), page.skipped, session.entry.corrupt_records) == (["one", "two"], 1, 1)
        assert file_of(store, session).read_bytes().count(b"\n") == 4


async def test_a_record_at_the_limit_is_stored_and_one_byte_more_is_refused(opener):
    async with opener(record_limit=400) as store:
        session, _ = await store.create(KEY, "main", [user("x")])
        room = 400 - (
            len(file_of(store, session).read_bytes().splitlines()[1]) - len("null") + len('"0123456789abcdef"')
        )
        await store.append(session, [user("x" * (room + 1))])
        assert [len(line) for line in file_of(store, session).read_bytes().splitlines()][-1] == 400
        with pytest.raises(LimitExceeded) as refused:
            await store.append(session, [user("fine"), user("x" * (room + 2))])
        assert refused.value.message == "the record is 401 bytes long, the limit is 400 (limits.maxRecordBytes)"
        assert refused.value.data == {"limit": "limits.maxRecordBytes", "value": 400}
        assert session.entry.message_count == 2


@pytest.mark.parametrize("raw", [b'{"role":"user","content":"\xff"}', b'{"role":"user","n":1e999}'])
async def test_a_message_that_could_not_be_read_back_is_refused(opener, raw):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        with pytest.raises(InvalidParams, match="the message cannot be stored"):
            await store.append(session, [Message(msgspec.Raw(raw))])
        assert len(lines_of(store, session)) == 1


@pytest.mark.parametrize("length", [17, 200, 370])
async def test_a_record_with_a_strangers_long_id_as_its_parent_can_be_read(opener, length):
    async with opener(record_limit=400) as store:
        session, _ = await store.create(KEY, "main", [user("x")])
        room = 400 - (
            len(file_of(store, session).read_bytes().splitlines()[1]) - len("null") + len('"0123456789abcdef"')
        )
        with file_of(store, session).open("a") as stranger:
            stranger.write(json.dumps({"type": "x", "id": "i" * length}) + "\n")
        store.read_new(session)
        assert session.last_id == "i" * length
        await store.append(session, [user("x" * (room + 1))])
        await store.append(session, [user("short")])
        assert texts(await newest(store, session)) == ["x", "x" * (room + 1), "short"]
        assert session.entry.corrupt_records == 0


async def test_a_raw_message_is_stored_byte_for_byte(opener):
    raw = b'{ "content" : "h\xc3\xa9",  "role":"user", "n": 1.0 }'
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [Message(msgspec.Raw(raw))])
        page = await newest(store, session)
        assert [line.record.message for line, _ in page.lines] == [raw]


async def test_pages_reach_the_first_message_and_cursors_give_the_same_pages_again(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user(str(number)) for number in range(7)])
        first = await shown(store, session, 3, Position(session.entry.file.folded_to, 7))
        assert (contents(first), first.has_more) == ([(5, "4"), (6, "5"), (7, "6")], True)
        cursor = store.cursor(session, first.start, first.start_seq)
        assert cursor == store.cursor(session, first.start, first.start_seq, first.start_check)
        ends = list(zip(first.messages.ends, first.messages.seqs, first.messages.checks, strict=True))
        assert store.cursors(session, ends) == [store.cursor(session, end, seq) for end, seq, _ in ends]
        assert store.cursors(session, []) == []
        second = await shown(store, session, 3, store.position(session, cursor))
        third = await shown(store, session, 3, Position(second.start, second.start_seq))
        assert contents(second) + contents(third) == [(2, "1"), (3, "2"), (4, "3"), (1, "0")]
        assert not third.has_more


async def test_a_cursor_into_the_middle_of_a_line_is_stale(opener):
    async with opener() as store:
        session, written = await store.create(KEY, "main", [user("one")])
        with pytest.raises(InvalidParams) as refused:
            await shown(store, session, 9, Position(written[0].end - 1, 1))
        assert refused.value.code == "cursor_stale"


async def test_reading_a_transcript_that_is_gone_is_a_storage_error(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        file_of(store, session).unlink()
        with pytest.raises(TranscriptMissing) as refused:
            await newest(store, session)
        assert refused.value.message == (
            f"could not read agents/main/sessions/{session.file_name}, the transcript of {KEY}:"
            " No such file or directory; put it back, then try again"
        )


async def test_a_restart_gives_the_same_rows_with_and_without_the_index(opener):
    async with opener() as store:
        for number in range(5):
            session, _ = await store.create(f"agent:main:cron:{number}", "main", [user("hi")])
            await store.append(session, [Custom("sessiond/entry", {"label": f"l{number}"})])
        await store.create("agent:ops:main", "ops")
        await store.archive(store.catalog.by_key["agent:main:cron:0"])
        await save(store)
        before = entries(store)
    async with opener() as store:
        assert entries(store) == before
        assert store.dirty_folders() == []
    for file in (store.path / "agents").rglob("sessions.json"):
        file.unlink()
    async with opener() as store:
        assert entries(store) == before
        assert list(store.catalog.by_key) and store.catalog.by_key.keys() == {
            *(f"agent:main:cron:{number}" for number in range(1, 5)),
            "agent:ops:main",
        }


async def test_archiving_moves_the_transcript_and_frees_the_key(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("old")])
        content = file_of(store, session).read_bytes()
        await store.archive(session)
        assert session.path == f"agents/main/sessions/archive/{session.session_id}.jsonl"
        assert file_of(store, session).read_bytes() == content
        assert KEY not in store.catalog.by_key
        assert store.catalog.by_id[session.session_id] is session
        assert texts(await newest(store, session)) == ["old"]
        again, _ = await store.create(KEY, "main")
        assert store.catalog.by_key[KEY] is again


async def test_an_archived_file_is_never_replaced(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        there = store.path / "agents" / "main" / "sessions" / "archive" / session.file_name
        there.parent.mkdir()
        there.write_text("precious")
        with pytest.raises(StorageError, match="File exists"):
            await store.archive(session)
        assert there.read_text() == "precious"
        assert store.catalog.by_key[KEY] is session
        await store.append(session, [user("still there")])


async def test_an_append_during_archiving_is_in_the_archived_file(tmp_path):
    async with open_store(
        tmp_path / "store", listener=SilentListener, durable=True, record_limit=1 << 20, rules=KeyRules()
    ) as store:
        session, _ = await store.create(KEY, "main")
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(store.append, session, [user(str(number))])
                if number == 10:
                    nursery.start_soon(store.archive, session)
        assert "archive" in session.path
        assert len(lines_of(store, session)) == 21
        assert len(list((tmp_path / "store").rglob("*.jsonl"))) == 1


async def test_a_transcript_is_archived_with_what_has_a_place_in_it_already(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        told = trio.Event()
        with store.committer.take_place(session) as place:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.archive, session)
                await trio.testing.wait_all_tasks_blocked()
                assert not session.archived
                store.append_later(place, store.make_drafts([user("late")]), lambda *_: told.set())
        assert told.is_set()
        assert session.archived
        assert "late" in (store.path / session.path).read_text()


async def test_creating_a_session_under_an_existing_id_is_refused(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("one")])
        with pytest.raises(StorageError, match="File exists"):
            await store.create("agent:main:cron:x", "main", session_id=session.session_id)
        assert texts(await newest(store, session)) == ["one"]


async def test_an_index_that_could_not_be_saved_stays_dirty(opener):
    async with opener() as store:
        await store.create(KEY, "main")
        (folder,) = store.dirty_folders()
        (store.path / "agents" / "main" / "sessions" / "sessions.json").mkdir()
        with pytest.raises(StorageError, match="could not save the index of agent main: Is a directory"):
            await store.save(folder)
        assert store.dirty_folders() == [folder]


async def test_a_change_during_the_save_leaves_the_index_dirty(opener):
    async def meanwhile(function: Any, *args: Any) -> Any:
        if function is index.save:
            store.catalog.replace(session, session.entry)
        return function(*args)

    async with opener(run_sync=meanwhile) as store:
        session, _ = await store.create(KEY, "main")
        (folder,) = store.dirty_folders()
        await store.save(folder)
        assert store.dirty_folders() == [folder]


async def test_a_cursor_can_be_located_while_its_transcript_moves_to_the_archive(opener):
    """For example for a client that resumes its subscription in the middle of a reset."""
    found: list[Any] = []

    async def meanwhile(function: Any, *args: Any) -> Any:
        done = function(*args)
        if function is dirfd.move:
            found.append(store.locate(session, cursor))
        return done

    async with opener(run_sync=meanwhile) as store:
        session, written = await store.create(KEY, "main", [Message({"role": "user", "content": "x"})] * 3)
        cursor = store.cursor(session, written[0].end, 1)
        await store.archive(session)
        assert found == [store.locate(session, cursor)] == [(session, Position(written[0].end, 1))]


async def test_a_cancelled_save_leaves_the_index_dirty(opener):
    async with opener() as store:
        await store.create(KEY, "main")
        (folder,) = store.dirty_folders()
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.save(folder)
        assert store.dirty_folders() == [folder]


async def test_symlinks_below_the_store_are_reported_and_the_rest_is_usable(opener, tmp_path):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("hi")])
    sessions = store.path / "agents" / "main" / "sessions"
    outside = tmp_path / "outside"
    outside.mkdir()
    (sessions / "archive").rmdir() if (sessions / "archive").exists() else None
    (sessions / "archive").symlink_to(outside)
    (sessions / "linked.jsonl").symlink_to(outside / "t.jsonl")
    (store.path / "agents" / "linked").symlink_to(outside)
    async with opener() as store:
        assert store.problems == [
            Problem("agents/linked", "a symlink; it is not followed"),
            Problem("agents/main/sessions/linked.jsonl", "a symlink; it is not followed"),
            Problem("agents/main/sessions/archive", "a symbolic link stands where none is followed"),
        ]
        session = store.catalog.by_key[KEY]
        with pytest.raises(StorageError):
            await store.archive(session)
        await store.append(session, [user("again")])
        assert texts(await newest(store, session)) == ["hi", "again"]
    assert list(outside.iterdir()) == []


async def test_progress_is_reported_for_each_file_that_is_read(opener):
    async with opener() as store:
        for number in range(3):
            await store.create(f"agent:main:cron:{number}", "main")
        await save(store)
    reported: list[tuple[int, int, str]] = []
    async with opener(progress=lambda *where: reported.append(where)) as store:
        assert reported == []
    (store.path / "agents" / "main" / "sessions" / "sessions.json").unlink()
    async with opener(progress=lambda *where: reported.append(where)):
        assert reported == [(0, 3, "main"), (1, 3, "main"), (2, 3, "main")]


async def test_a_copied_store_is_read_again_and_gives_the_same_entries(opener, tmp_path):
    async with opener() as store:
        await store.create(KEY, "main", [user("hi")])
        await save(store)
    shutil.copytree(store.path, tmp_path / "copy")
    async with opener(tmp_path / "copy") as copy:
        old, new = store.catalog.by_key[KEY].entry, copy.catalog.by_key[KEY].entry
        assert msgspec.structs.replace(new, file=old.file) == old
        assert new.file.inode == os.stat(copy.path / copy.catalog.by_key[KEY].path).st_ino


@pytest.mark.parametrize("name", ["{}-backup", "0-{}", "{}.1"])
async def test_a_copy_beside_a_transcript_does_not_take_its_key(opener, name):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("hi")])
        copy = file_of(store, session).with_name(name.format(session.session_id) + ".jsonl")
        shutil.copyfile(file_of(store, session), copy)
        await store.append(session, [user("after")])
    for _ in range(2):
        async with opener() as store:
            assert store.catalog.by_key[KEY].session_id == session.session_id
            assert store.catalog.by_id[copy.stem].superseded
            await save(store)


async def test_a_renamed_transcript_keeps_its_key_if_no_other_file_has_it(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main", [user("hi")])
        file_of(store, session).rename(file_of(store, session).with_name("renamed.jsonl"))
    async with opener() as store:
        assert store.catalog.by_key[KEY].session_id == "renamed"


async def test_an_append_to_a_closed_store_is_refused(opener):
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
    with pytest.raises(Stopping):
        await store.append(session, [user("late")])


async def test_the_order_of_the_sessions_is_the_same_after_a_restart(opener):
    async with opener() as store:
        for number in (3, 1, 2, 0):
            await store.create(f"agent:main:cron:{number}", "main", [user(str(number))])
        # The oldest session has the newest message.
        await store.append(store.catalog.by_key["agent:main:cron:3"], [user("again")])
        await save(store)
        before = [(session.key, session.entry.updated_at) for session in store.catalog.newest()]
        assert len(before) == 4 and before == sorted(before, key=lambda one: (-one[1], one[0]))
    for with_index in (True, False):
        if not with_index:
            for file in (store.path / "agents").rglob("sessions.json"):
                file.unlink()
        async with opener() as store:
            assert [(session.key, session.entry.updated_at) for session in store.catalog.newest()] == before
