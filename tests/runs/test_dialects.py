"""Code that reads transcripts outside the feed uses the transcript's dialect: here, our records encoded in Base64."""

from __future__ import annotations

import base64
import binascii
import inspect
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace
from support.supervised_runs import run_harness

from sessiond.conversations import open_conversation
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.model.record import CONVERSATION, RUN, BadLine, Record, header_line
from sessiond.runs import inbox, recovery, spawn_journal
from sessiond.runs.run import RunView
from sessiond.store import blocks, checks, folding, layout, making, paging, reading, repair, scan, transcript, writing
from sessiond.store.catalog import Folder, Session
from sessiond.store.cursor import Position
from sessiond.subagents import outcome

KEY = "agent:main:cron:other"
RUN_ID, NEXT_ID = "o1.0123456789abcdef", "o1.fedcba9876543210"


def parse_scrambled(line: bytes) -> Record:
    try:
        return V3.parse(base64.b64decode(line, validate=True))
    except binascii.Error:
        raise BadLine("no Base64") from None


SCRAMBLED = replace(V3, name="scrambled", parse=parse_scrambled, fold_version=V3.fold_version + 1000)


def _line(record: dict[str, object]) -> bytes:
    return base64.b64encode(msgspec.json.encode({"id": "a", "parentId": None, **record})) + b"\n"


def _run(run_id: str, status: str, **more: object) -> bytes:
    return _line({"type": "custom", "customType": RUN, "data": {"runId": run_id, "status": status, "at": 5, **more}})


def _write(folder: Path) -> None:
    message = {"role": "user", "content": "count"}
    spawned = {"message": message, "follow": {"spawn": {}}, "attachments": {"relDir": "x/files"}}
    lines = [
        base64.b64encode(header_line("o1", KEY, "main", 5, cwd="/")[:-1]) + b"\n",
        _run(RUN_ID, "accepted", request=spawned),
        _line({"type": "message", "message": message}),
        _run(RUN_ID, "running"),
        _line({"type": "message", "message": {"role": "assistant", "content": "three"}}),
        _run(RUN_ID, "ok", replyBefore=True),
        _run(NEXT_ID, "accepted", request={"message": {"role": "user", "content": "more"}}),
        _line({"type": "custom", "customType": CONVERSATION, "data": {"talkId": RUN_ID, "status": "open"}}),
    ]
    (folder / "o1.jsonl").write_bytes(b"".join(lines))


async def test_every_reader_outside_the_feed_uses_the_dialect_of_the_transcript(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    _write(tmp_path / "others")
    fd = os.open(tmp_path / "others", os.O_RDONLY | os.O_DIRECTORY)
    async with run_harness(tmp_path / "store") as harness:
        store, folder = harness.store, Folder("main", fd, SCRAMBLED)
        entry = folding.advance(fd, Entry(session_id="o1"), "o1.jsonl", store.record_limit, dialect=SCRAMBLED).entry
        assert (entry.session_key, entry.message_count, len(entry.runs), entry.corrupt_records) == (KEY, 2, 1, 0)
        session = Session(key=KEY, entry=entry, folder=folder)
        store.catalog.add(session)
        assert await harness.supervisor.registry.find(RUN_ID) == RunView(
            run_id=RUN_ID, key=KEY, status="ok", reply="three", started_at=5, ended_at=5
        )
        assert await outcome.find_first_end(store, session) == RUN_ID
        assert await outcome.task_of(store, harness.supervisor.registry, session, "unknown") == "count"
        [again], [] = await recovery.read_runs(store)
        assert (again.run_id, again.request.text) == (NEXT_ID, "more")
        page = await inbox.page(store, session, Position(0, 0))
        assert [message.text for message in page.messages] == ["count"]
        read = open_conversation.read_opening_record, entry.talks[0], store.record_limit, session.dialect
        assert await store.read(session, *read) == open_conversation.OpeningRecord(talk_id=RUN_ID)
        assert await harness.feed.refold(session)
        assert session.entry == entry
    os.close(fd)


def test_no_reading_function_has_a_default_dialect() -> None:
    modules = (blocks, checks, folding, making, paging, reading, repair, scan, transcript, writing)
    modules += (inbox, recovery, spawn_journal, open_conversation, outcome, layout)
    functions = [one for module in modules for _, one in inspect.getmembers(module, inspect.isfunction)]
    defaults = {
        function.__qualname__: parameter.default
        for function in [*functions, Folder]
        if (parameter := inspect.signature(function).parameters.get("dialect")) is not None
    }
    assert "read_lines" in defaults
    assert {name for name, default in defaults.items() if default is not inspect.Parameter.empty} == set()
