"""Changes to transcripts as a subscriber sees them: each record once, whoever wrote it. Source: store.md, "Rules"."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from support.followed_store import (
    PATIENCE_S,
    FollowedStore,
    MissingEventsWatcher,
    Reader,
    append,
    followed_store,
    header,
    line,
    message,
)
from support.sampling import share_out
from support.shortage import no_free_descriptor

from sessiond.errors import StorageError
from sessiond.events.step_sizes import MAX_STEP_BYTES
from sessiond.events.watch import Kind, open_watcher
from sessiond.events.watch_backend import NameChanged, Rescan
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.event import ChangedEvent, MessageEvent
from sessiond.model.row import row_of
from sessiond.store import dirfd, folding
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message

KEY, OTHER = "agent:main:a", "agent:main:b"
ID = "0f0f0f0f-0000-4000-8000-00000000000{}"
KINDS = [
    pytest.param("inotify", marks=pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux")),
    "watchfiles",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`test_watch.py` holds every backend to the same reports, of which the feed makes the same."""
    share_out(metafunc, "kind", KINDS)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def parts(kind: Kind, tmp_path: Path) -> AsyncIterator[FollowedStore]:
    async with followed_store(tmp_path, watcher=kind) as parts:
        await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)  # until the watches are set up
        yield parts


def transcript(reader: Reader) -> list[str]:
    """The events received, without the changes of rows."""
    return [text for text in reader.summaries if not text.startswith("changed:")]


def row(entry: Entry) -> Entry:
    """An entry without the facts of its file, which events do not contain."""
    return replace(entry, file=FileFacts())


async def test_a_strangers_append_is_announced_and_followed_by_its_row(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    parts.write(KEY, "one")
    await reader.wait_until(lambda: len(reader.events) == 2)
    said, changed = reader.events
    assert isinstance(said, MessageEvent) and isinstance(changed, ChangedEvent)
    assert (said.message_id, said.seq, said.message) == ("one", 1, b'{"role": "user", "content": "one"}')
    assert (changed.phase, changed.entry and row(changed.entry)) == ("message", row(parts.session(KEY).entry))


async def test_the_daemons_own_append_is_announced_once_and_before_its_acknowledgement(
    parts: FollowedStore,
) -> None:
    _, reader = parts.follow(KEY)
    for number in range(20):
        await parts.say(KEY, str(number))
        assert reader.summaries == [str(n) for n in range(number + 1)]
    parts.write(KEY, "a stranger's")
    await reader.wait_for_text("a stranger's")
    assert reader.summaries == [*map(str, range(20)), "a stranger's"]


async def test_with_many_followers_fewer_records_are_announced_in_one_step(parts: FollowedStore) -> None:
    readers = [parts.follow(KEY)[1] for _ in range(16)]
    largest, before, done = 0, 0, trio.Event()

    async def watch() -> None:
        # Between two turns of this task there is at most one slice.
        nonlocal largest, before
        while not done.is_set():
            largest, before = max(largest, len(readers[0].events) - before), len(readers[0].events)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        strangers, own = [f"a stranger's {number}" for number in range(2000)], [*map(str, range(2000))]
        parts.write(KEY, *strangers)
        await parts.say(KEY, *own)
        assert all(reader.summaries == strangers + own for reader in readers)
        done.set()
    assert largest < 1500, "a slice takes three milliseconds, and a few dozen records"


async def test_a_half_line_is_announced_when_it_is_complete(parts: FollowedStore) -> None:
    _, reader = parts.follow(KEY)
    data = line("finished later")
    append(parts.file(KEY), data[:20])
    await trio.testing.wait_all_tasks_blocked(0.1)
    append(parts.file(KEY), data[20:50])
    await trio.testing.wait_all_tasks_blocked(0.1)
    assert reader.summaries == []
    append(parts.file(KEY), data[50:] + line("next"))
    await reader.wait_for_text("next")
    assert reader.summaries == ["finished later", "next"]
    assert parts.session(KEY).entry.corrupt_records == 0


async def test_a_file_written_in_pieces_is_adopted_after_its_last_whole_line(parts: FollowedStore) -> None:
    await parts.create(KEY)
    _, reader = parts.follow(None)
    file, data = parts.folder() / "halves.jsonl", header("halves") + line("one") + line("two")
    for cut in range(0, len(data), 40):
        append(file, data[cut : cut + 40])
        await trio.testing.wait_all_tasks_blocked(0.005)
    # After the last change, or a second later: a file that ends within a line is looked at again.
    await reader.wait_for_text("two")
    session = parts.store.catalog.by_id["halves"]
    assert (session.entry.message_count, session.entry.corrupt_records) == (2, 0)
    assert file.read_bytes().startswith(data)


async def test_a_session_whose_file_was_emptied_keeps_parent_folder_and_time(parts: FollowedStore) -> None:
    session, _ = await parts.store.create(KEY, "main", cwd="/w", spawned_by="agent:main:boss")
    before = session.entry
    parts.file(KEY).write_bytes(b"")
    with trio.fail_after(PATIENCE_S):
        while session.epoch == 0:
            await trio.testing.wait_all_tasks_blocked(0.005)
    await parts.say(KEY, "after")
    entry = parts.session(KEY).entry
    assert (entry.spawned_by, entry.cwd, entry.created_at) == ("agent:main:boss", "/w", before.created_at)
    first = json.loads(parts.file(KEY).read_bytes().splitlines()[0])
    assert (first["sessionKey"], first["spawnedBy"], first["cwd"]) == (KEY, "agent:main:boss", "/w")


async def test_an_index_that_was_incomplete_at_the_start_is_read_a_second_later(
    tmp_path: Path,
) -> None:
    place = tmp_path / "store/agents/main/sessions"
    place.mkdir(parents=True)
    append(place / f"{ID.format(1)}.jsonl", header(ID.format(1)))
    rows = {KEY: {"sessionId": ID.format(1), "label": "dear"}, OTHER: {"sessionId": ID.format(2), "label": "alone"}}
    (place / "sessions.json").write_text(json.dumps(rows)[:-9])
    async with followed_store(tmp_path) as parts:
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert parts.store.catalog.by_key == {}
        assert parts.store.dirty_folders() == []
        (place / "sessions.json").write_text(json.dumps(rows))
        with trio.fail_after(PATIENCE_S):
            while len(parts.store.catalog.by_key) < 2:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert {key: session.entry.label for key, session in parts.store.catalog.by_key.items()} == {
            KEY: "dear",
            OTHER: "alone",
        }


@pytest.mark.parametrize("left", ["nothing", "the header", "a bare header"])
async def test_a_session_whose_file_is_rewritten_stays_sandboxed_throughout(parts: FollowedStore, left: str) -> None:
    session, key = await parts.create(OTHER, "before"), OTHER
    await parts.store.append(session, [Custom("sessiond/entry", {"label": "dear", "sandboxed": True})])
    inside, epoch, head = session.entry, session.epoch, parts.file(key).read_bytes().partition(b"\n")[0] + b"\n"
    os.truncate(parts.file(key), 0)
    append(parts.file(key), {"nothing": b"", "the header": head, "a bare header": header(session.session_id)}[left])
    with trio.fail_after(PATIENCE_S):
        while session.epoch == epoch:
            assert session.entry.sandboxed
            await trio.sleep(0.005)
    assert (session.entry.sandboxed, session.entry.message_count) == (True, 0)
    await parts.say(key, "after")
    fresh = folding.advance(
        session.folder.fd, folding.begin_anew(session.entry), session.file_name, 2**20, dialect=V3
    ).entry
    assert fresh == session.entry
    assert (fresh.session_key, fresh.sandboxed, fresh.message_count) == (key, True, 1)
    assert fresh.label == (None if left == "the header" else "dear")
    assert inside.label == "dear"


async def test_a_file_created_while_no_descriptor_is_free_is_found_a_second_later(parts: FollowedStore) -> None:
    await parts.create(KEY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    file = parts.folder() / "late.jsonl"
    new = os.open(file.with_name("new"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(new, header("late", "agent:main:late") + line("one"))
    os.close(new)
    gc.collect()  # files that an earlier test left open must not be closed in between
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        file.with_name("new").rename(file)
        await trio.testing.wait_all_tasks_blocked(0.2)
        if "late" in parts.store.catalog.by_id:
            pytest.skip("something in this process closed a descriptor meanwhile: there was one for the file")
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with trio.fail_after(PATIENCE_S):
        while "late" not in parts.store.catalog.by_id:
            await trio.testing.wait_all_tasks_blocked(0.05)
    assert parts.session("agent:main:late").entry.message_count == 1


async def test_an_append_after_a_torn_line_begins_on_a_line_of_its_own(parts: FollowedStore) -> None:
    _, reader = parts.follow(KEY)
    append(parts.file(KEY), line("torn")[:30])
    await parts.say(KEY, "mine")
    assert reader.summaries == ["mine"]
    assert parts.session(KEY).entry.corrupt_records == 1


async def test_bad_lines_are_counted_and_skipped(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    bad = [
        b"not json\n",
        b"[1]\n",
        b'{"type":"message","message":{"content":"\0"}}\n',
        b"\xff\xfe\n",
        b"\0" * 40 + b"\n",
    ]
    append(parts.file(KEY), b"".join(bad) + line("good"))
    await reader.wait_until(lambda: len(reader.events) == 2)
    assert reader.summaries == ["good", "changed:message"]
    [_, changed] = reader.events
    assert isinstance(changed, ChangedEvent) and changed.entry is not None
    assert changed.entry.corrupt_records == len(bad)


async def test_a_line_over_the_limit_is_skipped_and_one_at_the_limit_is_not(tmp_path: Path) -> None:
    async with followed_store(tmp_path, record_limit=1000) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(KEY)
        exact = b'{"type":"message","message":{"role":"user","content":"%s"}}\n'
        text = b"y" * (1000 + len(b"\n") - len(exact % b""))
        append(parts.file(KEY), exact % text)
        append(parts.file(KEY), exact % (text + b"y"))
        # Its first half alone is over the limit, before its end has been read.
        append(parts.file(KEY), b'{"type":"message","message":{"content":"' + b"z" * 2000)
        await trio.testing.wait_all_tasks_blocked(0.05)
        append(parts.file(KEY), b"z" * 2000 + b'"}}\n' + line("after"))
        await reader.wait_for_text("after")
        assert reader.summaries == [text.decode(), "after"]
        assert parts.session(KEY).entry.corrupt_records == 2


async def test_messages_are_announced_and_other_records_by_the_change_of_the_row(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    run = {"runId": "r", "at": 1}
    asked = {"request": {"message": message("x")}}
    await parts.store.append(
        parts.session(KEY),
        [
            Message(message("said")),
            Message(message("done", role="toolResult")),
            Custom("sessiond/entry", {"label": "l"}),
            Custom("sessiond/run", run | asked | {"status": "accepted"}),
            Custom("sessiond/run", run | {"status": "running"}),
            Custom("sessiond/run", run | {"status": "ok"}),
            Custom("sessiond/run", {"runId": "q", "at": 2, "status": "accepted"}),
            Custom("sessiond/run", {"runId": "q", "at": 2, "status": "running"}),
            Custom("sessiond/run", {"runId": "q", "at": 3, "status": "timeout"}),
            Custom("somebody/else", {"status": "running"}),
        ],
    )
    append(parts.file(KEY), b'{"type":"model_change","modelId":"m","provider":"p"}\n{"type":"compaction"}\n{}\n')
    await reader.wait_until(lambda: reader.summaries.count("changed:patch") == 3)
    changes = [(e.phase, e.reason, e.entry.status) for e in reader.events if isinstance(e, ChangedEvent) and e.entry]
    assert reader.texts == ["said", "done"]
    assert changes == [
        ("message", None, None),
        ("message", None, None),
        ("patch", None, None),
        ("patch", "queued", "queued"),
        ("start", None, "running"),
        ("end", "ok", "ok"),
        ("start", None, "running"),
        ("error", "timeout", "timeout"),
        ("patch", None, "timeout"),
    ]


async def test_an_append_larger_than_a_step_is_announced_when_it_is_acknowledged(parts: FollowedStore) -> None:
    _, reader = parts.follow(KEY)
    texts = [f"{number} " + "x" * 1000 for number in range(3 * MAX_STEP_BYTES // 1000)]
    await parts.say(KEY, *texts)
    assert reader.summaries == texts


async def test_a_strangers_large_write_is_read_in_steps(parts: FollowedStore) -> None:
    _, reader = parts.follow(KEY)
    texts = [f"{number} " + "x" * 1000 for number in range(5 * MAX_STEP_BYTES // 1000)]
    append(parts.file(KEY), b"".join(map(line, texts)))
    await reader.wait_for_text(texts[-1])
    assert reader.summaries == texts


async def test_a_session_created_by_the_daemon_is_announced_from_its_beginning(parts: FollowedStore) -> None:
    _, everything = parts.follow(None)
    await parts.create(OTHER, "one", "two")
    assert everything.summaries == ["changed:create", "one", "changed:message", "two", "changed:message"]


async def test_an_overflow_at_the_first_event_of_a_new_session_loses_no_record(parts: FollowedStore) -> None:
    _, reader = parts.follow(None, limit=2)
    reader.stop()
    await parts.create(OTHER, "one", "two", "three")
    reader.go_on()
    await reader.wait_for_text("three")
    assert transcript(reader) == ["resync:lagged", "one", "two", "three"]


async def test_a_new_file_is_announced_with_all_its_messages(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    append(parts.folder() / f"{ID.format(1)}.jsonl", header(ID.format(1), OTHER) + line("one") + line("two"))
    await reader.wait_for_text("two")
    append(parts.file(OTHER), line("three"))
    await reader.wait_for_text("three")
    assert reader.summaries[0] == "changed:create"
    assert transcript(reader) == ["one", "two", "three"]


async def test_a_file_that_is_moved_into_the_folder_is_found(parts: FollowedStore, tmp_path: Path) -> None:
    _, reader = parts.follow(None)
    append(tmp_path / "elsewhere", header(ID.format(1), OTHER) + line("one"))
    (tmp_path / "elsewhere").rename(parts.folder() / f"{ID.format(1)}.jsonl")
    await reader.wait_for_text("one")
    assert (transcript(reader), parts.session(OTHER).session_id) == (["one"], ID.format(1))


async def test_a_file_without_a_key_is_adopted_as_soon_as_its_header_is_complete(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    path = parts.folder() / f"{ID.format(1)}.jsonl"
    append(path, header(ID.format(1))[:30])
    await trio.testing.wait_all_tasks_blocked(0.1)
    append(path, header(ID.format(1))[30:] + line("one"))
    await reader.wait_for_text("one")
    append(path, line("two"))
    await reader.wait_for_text("two")
    assert transcript(reader) == ["one", "two"]
    assert parts.session(f"agent:main:import:{ID.format(1)}").path.endswith(path.name)
    assert path.read_bytes().count(b"sessiond/entry") == 1


async def test_a_new_agents_folder_is_watched_from_its_first_file_on(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    for agent, made_at_once in (("new", True), ("late", False)):
        folder = parts.folder(agent)
        if made_at_once:
            folder.mkdir(parents=True)
        else:
            folder.parent.mkdir()
            await trio.testing.wait_all_tasks_blocked(0.1)
            folder.mkdir()
            await trio.testing.wait_all_tasks_blocked(0.1)
        key = f"agent:{agent}:main"
        path = folder / f"{ID.format(1 + made_at_once)}.jsonl"
        append(path, header(path.stem, key) + line(f"{agent} 1"))
        await reader.wait_for_text(f"{agent} 1")
        append(path, line(f"{agent} 2"))
        await reader.wait_for_text(f"{agent} 2")
    assert transcript(reader) == ["new 1", "new 2", "late 1", "late 2"]


async def test_a_transcript_copied_to_another_agents_folder_becomes_a_separate_session(parts: FollowedStore) -> None:
    await parts.say(KEY, "one")
    _, reader = parts.follow(None)
    original = parts.file(KEY)
    copy = parts.folder("other") / original.name
    copy.parent.mkdir(parents=True)
    shutil.copy(original, copy)
    await reader.wait_for_text("one")
    append(copy, line("in the copy"))
    await reader.wait_for_text("in the copy")
    parts.write(KEY, "in the original")
    await reader.wait_for_text("in the original")
    assert [(e.key, e.message_id) for e in reader.events if isinstance(e, MessageEvent)][1:] == [
        (f"agent:other:import:{original.stem}", "in the copy"),
        (KEY, "in the original"),
    ]
    copy.unlink()
    await reader.wait_until(lambda: "changed:delete" in reader.summaries)
    assert set(parts.store.catalog.by_key) == {KEY}


async def test_a_transcript_moved_back_from_the_archive_is_a_session_again(parts: FollowedStore) -> None:
    await parts.say(KEY, "one")
    session = parts.session(KEY)
    _, reader = parts.follow(None)
    await parts.delete(KEY)
    (parts.store.path / session.path).rename(parts.folder() / session.file_name)
    await reader.wait_for_text("one")
    parts.write(KEY, "two")
    await reader.wait_for_text("two")
    assert [text for text in transcript(reader) if text != "resync:reset"] == ["one", "two"]
    assert set(parts.store.catalog.by_id.values()) == {parts.session(KEY)}


async def test_a_newer_transcript_of_a_key_replaces_the_older_one_until_it_is_removed(parts: FollowedStore) -> None:
    await parts.say(KEY, "old 1")
    _, reader = parts.follow(KEY)
    newer = parts.folder() / f"{ID.format(1)}.jsonl"
    append(newer, header(newer.stem, KEY, created="2999-01-01T00:00:00.000Z") + line("new 1"))
    await reader.wait_for_text("new 1")
    newer.unlink()
    await reader.wait_for_text("old 1")
    parts.write(KEY, "old 2")
    await reader.wait_for_text("old 2")
    assert reader.summaries == ["resync:reset", "new 1", "resync:reset", "old 1", "old 2"]


async def test_an_older_transcript_of_a_key_is_archived_and_not_announced(parts: FollowedStore) -> None:
    _, reader = parts.follow(None)
    older = parts.folder() / f"{ID.format(1)}.jsonl"
    append(older, header(older.stem, KEY, created="1999-01-01T00:00:00.000Z") + line("old"))
    await trio.testing.wait_all_tasks_blocked(0.1)
    append(older, line("older"))
    parts.write(KEY, "now")
    await reader.wait_for_text("now")
    assert reader.texts == ["now"]


@pytest.mark.parametrize("how", ["shrunk", "replaced", "longer"])
async def test_a_rewritten_file_is_announced_from_its_start(parts: FollowedStore, tmp_path: Path, how: str) -> None:
    await parts.say(KEY, "one", "two")
    session, path = parts.session(KEY), parts.file(KEY)
    _, reader = parts.follow(None)
    if how == "shrunk":
        kept = b"".join(path.read_bytes().splitlines(keepends=True)[:2])
        os.truncate(path, len(kept))
        expected = ["one"]
    else:
        texts = ["x"] if how == "replaced" else ["x" * 5000]
        (tmp_path / "new").write_bytes(header(session.session_id, KEY) + b"".join(map(line, texts)))
        (tmp_path / "new").rename(path)
        expected = texts
    await reader.wait_until(lambda: "changed:patch" in reader.summaries)
    parts.write(KEY, "after")
    await reader.wait_for_text("after")
    assert transcript(reader) == ["resync:rewritten", *expected, "after"]
    counted = [e.entry.message_count for e in reader.events if isinstance(e, ChangedEvent) and e.entry is not None]
    assert counted[-1] == len(expected) + 1


@pytest.mark.parametrize("ends_with", ["message", "other"])
async def test_no_row_shows_a_part_of_a_replaced_file_as_if_it_were_all(
    parts: FollowedStore, tmp_path: Path, ends_with: str
) -> None:
    await parts.say(KEY, "one", "two")
    session, path = parts.session(KEY), parts.file(KEY)
    _, reader = parts.follow(None)
    count = 4 * MAX_STEP_BYTES // 1000
    last = (
        b"" if ends_with == "message" else b'{"type": "custom", "id": "x", "customType": "other", "data": {}}\n' * 3000
    )
    lines = [line(f"{number:4} " + "x" * 1000) for number in range(count)]
    (tmp_path / "new").write_bytes(header(session.session_id, KEY) + b"".join(lines) + last)
    (tmp_path / "new").rename(path)

    def shown(entry: Entry) -> tuple[bool, int | None]:
        row = row_of(KEY, entry, path="", rules=parts.store.rules, caller_agent=None, children=[])
        return row.partial, row.message_count

    listed = {shown(session.entry): None}
    while list(listed)[-1] != (False, count):
        await trio.lowlevel.checkpoint()
        listed[shown(session.entry)] = None
    assert list(listed) == [(False, 2), (True, None), (False, count)]

    def told() -> set[tuple[bool, int | None]]:
        return {shown(event.entry) for event in reader.events if isinstance(event, ChangedEvent) and event.entry}

    await reader.wait_until(lambda: (False, count) in told())
    assert told() <= {(True, None), (False, count)}


@pytest.mark.parametrize("how", ["another", "a copy", "without its key"])
async def test_a_replaced_file_is_closed_and_takes_up_no_space(parts: FollowedStore, tmp_path: Path, how: str) -> None:
    await parts.say(KEY, "one", "two")
    session, path = parts.session(KEY), parts.file(KEY)
    copied = path.read_bytes()
    old = path.stat().st_ino
    assert old in open_inodes()
    texts = {"another": header(session.session_id, KEY) + line("x"), "a copy": copied, "without its key": line("x")}
    (tmp_path / "new").write_bytes(texts[how])
    (tmp_path / "new").rename(path)
    with trio.fail_after(PATIENCE_S):
        while old in open_inodes() or session.entry.file.inode != path.stat().st_ino:
            await trio.lowlevel.checkpoint()
    await parts.say(KEY, "three")
    assert old not in open_inodes()


def open_inodes() -> set[int]:
    """The inodes of all regular files that this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.fstat(int(fd)).st_ino)
    return found


async def test_a_file_rewritten_without_its_key_gets_the_key_back(parts: FollowedStore, tmp_path: Path) -> None:
    await parts.say(KEY, "one")
    session, path = parts.session(KEY), parts.file(KEY)
    _, reader = parts.follow(KEY)
    (tmp_path / "new").write_bytes(header(session.session_id) + line("two"))
    (tmp_path / "new").rename(path)
    await reader.wait_for_text("two")
    await parts.say(KEY, "three")
    assert reader.summaries == ["resync:rewritten", "two", "three"]
    assert (path.read_bytes().count(b'"sessionKey":"agent:main:a"'), session.entry.session_key) == (1, KEY)


async def test_an_emptied_file_keeps_its_key(parts: FollowedStore) -> None:
    await parts.say(KEY, "one")
    _, reader = parts.follow(KEY)
    os.truncate(parts.file(KEY), 0)
    await reader.wait_until(lambda: reader.summaries == ["resync:rewritten"])
    parts.write(KEY, "two")
    await reader.wait_for_text("two")
    assert (reader.summaries, parts.session(KEY).entry.message_count) == (["resync:rewritten", "two"], 1)


async def test_a_file_rewritten_with_another_key_becomes_that_session(parts: FollowedStore, tmp_path: Path) -> None:
    await parts.say(KEY, "one")
    session, path = parts.session(KEY), parts.file(KEY)
    (_, of_key), (_, everything) = parts.follow(KEY), parts.follow(None)
    (tmp_path / "new").write_bytes(header(session.session_id, OTHER) + line("two"))
    (tmp_path / "new").rename(path)
    await everything.wait_for_text("two")
    assert of_key.summaries == []
    assert everything.summaries == ["changed:delete", "changed:create", "two"]
    assert {key: found.path for key, found in parts.store.catalog.by_key.items()} == {OTHER: session.path}


async def test_a_removed_file_is_announced_as_a_deleted_session(parts: FollowedStore) -> None:
    await parts.say(KEY, "one")
    _, reader = parts.follow(None)
    parts.file(KEY).unlink()
    await reader.wait_until(lambda: reader.summaries == ["changed:delete"])
    assert parts.store.catalog.by_key == {}


async def test_sessions_of_a_removed_folder_are_deleted_and_found_again_when_it_returns(
    parts: FollowedStore, tmp_path: Path
) -> None:
    await parts.say(KEY, "one")
    _, reader = parts.follow(None)
    agent = parts.folder().parent
    agent.rename(tmp_path / "away")
    await reader.wait_until(lambda: reader.summaries == ["changed:delete"])
    assert (parts.store.catalog.by_key, parts.store.folders) == ({}, {})
    (tmp_path / "away").rename(agent)
    await reader.wait_for_text("one")
    await parts.say(KEY, "two")
    shutil.rmtree(agent)
    await reader.wait_until(lambda: reader.summaries.count("changed:delete") == 2)
    # The removal of the file may be announced before that of its folder is noticed.
    with trio.fail_after(PATIENCE_S):
        while parts.store.folders:  # noqa: ASYNC110
            await trio.sleep(0.005)
    await parts.create(KEY, "made anew")
    await reader.wait_for_text("made anew")
    parts.write(KEY, "and watched")
    await reader.wait_for_text("and watched")
    assert [text for text in transcript(reader) if text != "resync:reset"] == [
        "one",
        "two",
        "made anew",
        "and watched",
    ]


async def test_symlinks_are_not_followed(parts: FollowedStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "sessions"
    outside.mkdir(parents=True)
    append(outside / f"{ID.format(1)}.jsonl", header(ID.format(1), "agent:evil:main") + line("secret"))
    _, reader = parts.follow(None)
    (parts.store.path / "agents" / "evil").symlink_to(outside.parent)
    (parts.folder() / f"{ID.format(1)}.jsonl").symlink_to(outside / f"{ID.format(1)}.jsonl")
    await trio.testing.wait_all_tasks_blocked(0.1)
    append(outside / f"{ID.format(1)}.jsonl", line("more"))
    parts.write(KEY, "seen")
    await reader.wait_for_text("seen")
    assert reader.summaries[:1] == ["seen"]
    assert set(parts.store.catalog.by_key) == {KEY}


async def test_changes_that_the_watcher_missed_are_found_by_a_rescan(tmp_path: Path) -> None:
    watcher = MissingEventsWatcher()
    async with followed_store(tmp_path, watching=False) as parts, trio.open_nursery() as nursery:
        nursery.start_soon(parts.feed.run, watcher)
        for key in (KEY, OTHER, "agent:gone:main", "agent:moved:main"):
            await parts.create(key)
        await trio.testing.wait_all_tasks_blocked(0.05)
        _, reader = parts.follow(None)
        parts.write(KEY, "appended")
        parts.file(OTHER).unlink()
        shutil.rmtree(parts.folder("gone").parent)
        parts.folder("moved").rename(tmp_path / "away")
        parts.folder("moved").mkdir()
        fresh = parts.folder("fresh") / f"{ID.format(1)}.jsonl"
        fresh.parent.mkdir(parents=True)
        append(fresh, header(fresh.stem, "agent:fresh:main") + line("found"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert reader.summaries == []
        await watcher.send.send([Rescan("overflow")])
        await reader.wait_until(lambda: reader.summaries.count("changed:delete") == 3)
        await reader.wait_for_text("found")
        assert sorted(reader.texts) == ["appended", "found"]
        assert set(parts.store.catalog.by_key) == {KEY, "agent:fresh:main"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("what", ["append", "page", "each", "create", "what others wrote"])
async def test_where_no_descriptor_is_free_the_idle_ones_are_given_back(parts: FollowedStore, what: str) -> None:
    idle, store = await parts.create(OTHER), parts.store
    await parts.say(OTHER, "kept open")
    session = parts.session(KEY)
    with parts.file(KEY).open("ab", buffering=0) as theirs, no_free_descriptor(), trio.fail_after(PATIENCE_S):
        match what:
            case "append":
                await parts.say(KEY, "a")
            case "page":
                page = await store.page(idle, lambda record: record.message is not None, limit=9, max_bytes=1 << 20)
                assert len(page.lines) == 1
            case "each":
                ends = await store.read_each([idle], lambda fd, end, _: os.fstat(fd).st_size - end)
                assert ends == [0]
            case "create":
                await parts.create("agent:main:new")
            case _:
                theirs.write(line("theirs"))
                while not session.entry.message_count:
                    await trio.lowlevel.checkpoint()
    await parts.say(OTHER, "and again")
    assert idle.entry.message_count == 2


async def test_where_no_descriptor_is_free_and_none_is_idle_an_append_is_an_error(parts: FollowedStore) -> None:
    with no_free_descriptor(), pytest.raises(StorageError, match="Too many open files"):
        await parts.say(KEY, "a")
    await parts.say(KEY, "b")
    assert parts.session(KEY).entry.message_count == 1


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """InProcessDaemon, no file can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_commit_is_announced_without_reading_the_file_or_a_second_later_if_it_is_long(
    tmp_path: Path, autojump_clock: object, is_long: bool
) -> None:
    text = "acknowledged" + is_long * "x" * MAX_STEP_BYTES
    lowered = ExitStack()
    armed = False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        if armed:
            lowered.enter_context(no_free_descriptors())
        return result

    async with followed_store(tmp_path, run_sync=run_sync) as parts:
        await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)
        _, reader = parts.follow(KEY)
        with lowered:
            armed = True
            await parts.say(KEY, text)
            armed = False
            assert is_long == (reader.summaries == [])
            if not is_long:
                await reader.wait_for_text(text)
        # The file is not changed again.
        await reader.wait_for_text(text)
        assert reader.summaries == [text]


async def test_a_file_that_cannot_be_adopted_without_descriptors_is_found_a_second_later(
    tmp_path: Path, autojump_clock: object
) -> None:
    watcher = MissingEventsWatcher()
    async with followed_store(tmp_path, watching=False, run_sync=run_inline) as parts, trio.open_nursery() as nursery:
        nursery.start_soon(parts.feed.run, watcher)
        await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)
        _, reader = parts.follow(None)
        fresh = parts.folder() / f"{ID.format(1)}.jsonl"
        append(fresh, header(fresh.stem, OTHER) + line("found"))
        with no_free_descriptors():
            await watcher.send.send([NameChanged(str(fresh.parent), fresh.name), Rescan("overflow")])
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert set(parts.store.catalog.by_key) == {KEY}
        await reader.wait_for_text("found")
        assert reader.summaries[0] == "changed:create"
        nursery.cancel_scope.cancel()


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def test_many_foreign_files_are_adopted_with_one_index(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        _, reader = parts.follow(None)
        folder = parts.folder()
        folder.mkdir(parents=True)
        rows = {f"agent:main:telegram:group:{n}": {"sessionId": ID.format(n), "updatedAt": n} for n in range(9)}
        (folder / "sessions.json").write_bytes(msgspec.json.encode(rows))
        for number in range(9):
            append(folder / f"{ID.format(number)}.jsonl", header(ID.format(number)) + line(str(number)))
        await reader.wait_until(lambda: len(reader.texts) == 9)
        assert set(parts.store.catalog.by_key) == set(rows)


async def test_outside_changes_that_leave_the_content_alone_are_not_announced(parts: FollowedStore) -> None:
    """A new time, another mode, an open without a write, a hard link that is removed again."""
    await parts.say(KEY, "one")
    place, path = parts.newest_position(KEY), parts.file(KEY)
    _, reader = parts.follow(None)
    for time_ns in (10**9, 2 * 10**9):
        os.utime(path, ns=(time_ns, time_ns))
        # Not every watcher reports a changed time alone; the next read finds it.
        parts.store.read_new(parts.session(KEY))
        assert parts.session(KEY).entry.file.mtime_ns == time_ns
    path.chmod(0o640)
    path.chmod(0o600)
    with path.open("ab"):
        pass
    link = path.with_name("another.name")
    os.link(path, link)
    link.unlink()
    (path.parent / "notes.txt").write_text("nothing of sessiond's")
    parts.write(KEY, "two")
    await reader.wait_for_text("two")
    assert transcript(reader) == ["two"]
    assert set(reader.summaries) == {"two", "changed:message"}
    assert parts.newest_position(KEY).session_id == place.session_id
    assert row(parts.session(KEY).entry).message_count == 2


async def test_a_rewrite_right_after_an_append_is_noticed_though_size_and_time_stay_the_same(tmp_path: Path) -> None:
    """The clock of file systems ticks every few milliseconds."""
    async with followed_store(tmp_path, watcher="inotify") as parts:
        await parts.create(KEY)
        await parts.say(KEY, "mine")
        path, (_, reader) = parts.file(KEY), parts.follow(KEY)
        appended = path.stat()
        with path.open("r+b", buffering=0) as file:
            file.write(path.read_bytes().replace(b"mine", b"ours"))
            os.utime(file.fileno(), ns=(appended.st_atime_ns, appended.st_mtime_ns))
        await reader.wait_for_text("ours")


async def test_the_file_of_a_removed_session_is_closed(parts: FollowedStore) -> None:
    """As long as it is open it takes up space."""
    await parts.say(KEY, "one")
    session, (_, reader) = parts.session(KEY), parts.follow(None)
    parts.file(KEY).unlink()
    await reader.wait_until(lambda: "changed:delete" in reader.summaries)
    assert parts.store.committer.files.take(session) is None


async def test_an_append_is_not_announced_before_its_sync_even_if_the_watcher_reports_it(tmp_path: Path) -> None:
    """The bytes are in the file and not yet synced; the watcher reports them; then the sync fails."""
    synced, written, refuse = threading.Event(), trio.Event(), False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        return await trio.to_thread.run_sync(function, *args)

    def sync(fd: int) -> None:
        if refuse:
            trio.from_thread.run_sync(written.set)
            assert synced.wait(PATIENCE_S)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with followed_store(tmp_path, run_sync=run_sync) as parts:
        await parts.create(KEY)
        parts.store.committer._commits.sync = sync
        await parts.say(KEY, "one")
        _, reader = parts.follow(None)
        refuse = True
        async with trio.open_nursery() as nursery:

            async def say() -> None:
                with pytest.raises(StorageError):
                    await parts.say(KEY, "refused")

            nursery.start_soon(say)
            await written.wait()
            assert b"refused" in parts.file(KEY).read_bytes()
            # The watcher reports this file and then another; once the other is announced, both have been looked at.
            os.utime(parts.file(KEY))
            parts.write(KEY, "a stranger's")
            append(parts.folder() / "other.jsonl", header("other", "agent:main:other") + line("elsewhere"))
            await reader.wait_until(lambda: "agent:main:other" in parts.store.catalog.by_key)
            # Nor may an explicit read in the middle of the commit, as by a reset or a retry, announce it.
            parts.store.read_new(parts.session(KEY))
            assert parts.session(KEY).entry.message_count == 1
            refuse = False
            synced.set()
        await reader.wait_for_text("a stranger's")
        assert "refused" not in reader.texts
        assert parts.session(KEY).entry.message_count == 2
        assert parts.session(KEY).entry.corrupt_records == 0


async def test_long_records_are_announced_once_and_in_order_whoever_wrote_them(parts: FollowedStore) -> None:
    """Long records are parsed in a thread while other tasks go on."""
    long = [f"{letter}" * (600 * 1024) for letter in "abcd"]
    _, reader = parts.follow(None)
    parts.write(KEY, "one", long[0], "two", long[1])
    await reader.wait_until(lambda: len(reader.texts) == 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.say, KEY, "three", long[2], "four")
        parts.write(KEY, "five")
    parts.write(KEY, long[3], "six")
    await reader.wait_until(lambda: len(reader.texts) == 10)
    mine = [text for text in reader.texts if text in ("three", long[2], "four")]
    theirs = [text for text in reader.texts if text not in mine]
    assert mine == ["three", long[2], "four"]
    assert theirs == ["one", long[0], "two", long[1], "five", long[3], "six"]
    assert [event.seq for event in reader.events if isinstance(event, MessageEvent)] == list(range(1, 11))
    assert parts.session(KEY).parsed is None


async def test_a_long_record_replaced_while_it_was_parsed_is_not_announced(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def run_sync(function: Any, *args: Any) -> Any:
        if function is folding.parse_ahead:
            line = await trio.to_thread.run_sync(function, *args)
            begun.set()
            await trio.to_thread.run_sync(go_on.wait)
            return line
        return await trio.to_thread.run_sync(function, *args)

    async with followed_store(tmp_path, run_sync=run_sync) as parts:
        await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)
        _, reader = parts.follow(KEY)
        file = parts.file(KEY)
        before = file.read_bytes()
        parts.write(KEY, "x" * (600 * 1024))
        await trio.to_thread.run_sync(begun.wait)
        file.write_bytes(before + line("y" * (600 * 1024)))
        go_on.set()
        await reader.wait_until(lambda: any(text.startswith("y") for text in reader.texts))
        assert not any(text.startswith("x") for text in reader.texts)


async def test_unread_lines_are_not_read_while_an_append_is_in_progress(tmp_path: Path) -> None:
    """A stranger wrote more than one step reads; right after it the daemon appends a record whose sync then fails."""
    held = trio.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_carry_out":
            await held.wait()
        return await trio.to_thread.run_sync(function, *args)

    def sync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with followed_store(tmp_path, run_sync=run_sync, watching=False) as parts:
        await parts.create(KEY)
        session, told = parts.session(KEY), []
        _, reader = parts.follow(KEY)
        strangers = [f"{number} {'x' * 1000}" for number in range(300)]
        parts.write(KEY, *strangers)
        parts.store.read_new(session)
        read = session.entry.file.folded_to
        assert 0 < session.entry.message_count < 300
        parts.store.committer._commits.sync = sync
        drafts = parts.store.make_drafts([Message(message("refused"))])
        parts.store.append_later(session, drafts, lambda _ids, error: told.append(error))
        async with open_watcher("polling") as watcher, trio.open_nursery() as nursery:
            nursery.start_soon(parts.feed.run, watcher)
            await trio.testing.wait_all_tasks_blocked(0.05)
            folded_to = session.entry.file.folded_to
            held.set()
            assert folded_to == read
            await reader.wait_for_text(strangers[-1])
            nursery.cancel_scope.cancel()
        assert [type(error) for error in told] == [StorageError]
        assert reader.texts == strangers


async def test_what_is_reported_after_a_commit_has_looked_at_the_file_is_read_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with followed_store(tmp_path, watching=False) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(KEY)
        poke = parts.feed.poke

        def poke_too_late(session: Session) -> bool:
            monkeypatch.undo()
            parts.write(KEY, "a stranger's")
            parts.feed.changed_in_flight(session)
            return poke(session)

        monkeypatch.setattr(parts.feed, "poke", poke_too_late)
        await parts.say(KEY, "ours")
        await reader.wait_for_text("a stranger's")
        assert reader.texts == ["ours", "a stranger's"]
        assert not parts.feed._changed_in_flight


async def test_what_is_reported_before_a_commit_looks_at_the_file_costs_no_look_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Session] = []
    async with followed_store(tmp_path, watching=False) as parts:
        session = await parts.create(KEY)
        monkeypatch.setattr(parts.feed, "_is_up_to_date", lambda one: looks.append(one) or True)
        parts.feed.changed_in_flight(session)
        await parts.say(KEY, "ours")
        await parts.say(KEY, "ours again")
    assert looks == []


async def test_an_append_begun_while_a_long_record_is_parsed_is_not_read_before_its_commit(
    tmp_path: Path,
) -> None:
    parsing, parsed, held = trio.Event(), trio.Event(), threading.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        done = await trio.to_thread.run_sync(function, *args)
        if function is folding.parse_ahead:
            parsing.set()
            await parsed.wait()
        return done

    def sync(fd: int) -> None:
        held.wait(PATIENCE_S)  # its lines are written
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with followed_store(tmp_path, run_sync=run_sync, watching=False) as parts:
        await parts.create(KEY)
        session, told = parts.session(KEY), []
        _, reader = parts.follow(KEY)
        long = "x" * (600 * 1024)
        parts.write(KEY, long)
        read = session.entry.file.folded_to
        parts.store.committer._commits.sync = sync
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.feed.read_on, session)
            await parsing.wait()
            drafts = parts.store.make_drafts([Message(message("refused"))])
            parts.store.append_later(session, drafts, lambda _ids, error: told.append(error))
            parsed.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            folded_to = session.entry.file.folded_to
            held.set()
        assert folded_to == read
        await reader.wait_for_text(long)
        assert [type(error) for error in told] == [StorageError]
        assert reader.texts == [long]


async def test_a_transcript_being_archived_is_not_reported_as_removed(tmp_path: Path) -> None:
    moved, held = trio.Event(), trio.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        done = await trio.to_thread.run_sync(function, *args)
        if function is dirfd.move:
            moved.set()
            await held.wait()
        return done

    async with followed_store(tmp_path, run_sync=run_sync) as parts:
        session = await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)  # until the watches are set up
        _, reader = parts.follow(None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.store.archive, session)
            await moved.wait()
            # The watcher reports that file and then another one.
            append(parts.folder() / "other.jsonl", header("other", OTHER) + line("elsewhere"))
            await reader.wait_until(lambda: OTHER in parts.store.catalog.by_key)
            known = parts.store.catalog.by_key.get(KEY)
            held.set()
        assert known is session
        assert "changed:delete" not in reader.summaries


def hold_calls_of(name: str) -> tuple[trio.Event, trio.Event, Callable[..., Any]]:
    """Events for the call and the release of the function of this name, and a runner of file work that waits for it."""
    asked, held = trio.Event(), trio.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == name:
            asked.set()
            await held.wait()
        return await trio.to_thread.run_sync(function, *args)

    return asked, held, run_sync


async def test_followers_stay_on_a_transcript_until_the_append_in_progress_is_announced(tmp_path: Path) -> None:
    asked, held, run_sync = hold_calls_of("_carry_out")
    async with followed_store(tmp_path, run_sync=run_sync) as parts:
        old = await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)  # until the watches are set up
        _, reader = parts.follow(KEY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.say_to, old, "late")
            await asked.wait()
            newer = header("newer", KEY, created="2099-01-01T00:00:00.000Z") + line("new")
            append(parts.folder() / "newer.jsonl", newer)
            with trio.fail_after(PATIENCE_S):
                while parts.session(KEY) is old:
                    await trio.testing.wait_all_tasks_blocked(0.005)
            await trio.testing.wait_all_tasks_blocked(0.05)
            early = reader.texts
            held.set()
        assert early == []
        await reader.wait_for_text("new")
        assert reader.texts == ["late", "new"]


async def test_followers_stay_on_a_transcript_until_its_reset_has_moved_it(tmp_path: Path) -> None:
    asked, held, run_sync = hold_calls_of("move")
    async with followed_store(tmp_path, run_sync=run_sync, watching=False) as parts:
        await parts.create(KEY, "one")
        old = parts.file(KEY)
        _, reader = parts.follow(KEY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.reset, KEY)
            await asked.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            early = reader.summaries
            append(old, line("a stranger's last word"))
            held.set()
        assert early == []
        await reader.wait_until(lambda: "resync:reset" in reader.summaries)
        assert reader.summaries == ["a stranger's last word", "resync:reset"]


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_lagging_follower_gets_a_resync_before_overwritten_records(tmp_path: Path, *, replaced: bool) -> None:
    """Overwritten in place, or replaced by a file of the same length with the same end."""
    end = "two " * 60
    async with followed_store(tmp_path, watching=False) as parts:
        await parts.create(KEY, "one", end)
        file = parts.file(KEY)
        old, new = ('"one"', '"ONE"') if replaced else ("two ", "TWO ")
        content = file.read_bytes().replace(old.encode(), new.encode())
        if replaced:
            file.with_suffix(".new").write_bytes(content)
            file.with_suffix(".new").rename(file)
        else:
            file.write_bytes(content)
        _, reader = parts.follow(KEY, place=parts.first_position(KEY))
        await reader.wait_until(lambda: len(reader.texts) == 2)
        assert reader.summaries == ["resync:rewritten", *(["ONE", end] if replaced else ["one", "TWO " * 60])]
