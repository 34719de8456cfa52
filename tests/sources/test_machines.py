"""Replicas, as `sessiond link` writes them: sessions of other machines on every road, and what they may not do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from support.foreign_daemon import CONFIG, READER, daemon
from support.in_process import Connection
from support.patience import PATIENCE_S
from support.replicas import ID, STARTED_MS, custom, header, line, replace_replica, replica_path, write_replica
from support.rows import check_each

from sessiond.model.caller import Caller
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import FoundFacts, SourceFacts
from sessiond.sources.machines import FINDER, _adopted_key, _key_of_line

KEY = "mars/agent:ops:main"
REPLICA = DIALECTS["machine"]


def one_replica(tmp_path: Path, *parts: bytes, number: int = 1, key: str = "agent:ops:main", **where: str) -> Path:
    path = replica_path(tmp_path / "store", ID.format(number), **where)
    return write_replica(path, header(ID.format(number), key), *parts)


async def rows(connection: Connection, **params: Any) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in (await connection.call("sessions_list", **params))["sessions"]}


async def wait_for_rows(connection: Connection, keys: set[str]) -> dict[str, dict[str, Any]]:
    with trio.fail_after(PATIENCE_S):
        while (found := await rows(connection)).keys() != keys:  # noqa: ASYNC110 - of files no event tells all
            await trio.sleep(0.005)
    return found


def texts(page: dict[str, Any]) -> list[str]:
    return [message["content"][0]["text"] for message in page["messages"]]


async def test_a_replica_is_a_row_with_its_machine(tmp_path: Path) -> None:
    path = one_replica(tmp_path, line("hello"), line("hi", "assistant", at_s=2))
    async with daemon(tmp_path) as (parts, owner):
        began = parts.services.store.opened_at_ms
        assert (await rows(owner))[KEY] == {
            "key": KEY,
            "kind": "other",
            "channel": "unknown",
            "source": "machine",
            "machine": "mars",
            "awaySince": began,
            "title": "hello",
            "cwd": "/srv",
            "readOnly": True,
            "updatedAt": STARTED_MS + 2000,
            "createdAt": STARTED_MS,
            "sessionId": ID.format(1),
            "state": "idle",
            "messageCount": 2,
            "transcriptPath": str(path),
        }


async def test_it_is_found_by_its_key_its_id_and_what_it_is_called_there(tmp_path: Path) -> None:
    one_replica(tmp_path, line("hello"))
    one_replica(tmp_path, line("other"), number=2, key="agent:ops:cron:nightly")
    async with daemon(tmp_path) as (_, owner):
        for name in (KEY, "MARS/agent:OPS:main", "mars/main", ID.format(1), f"mars/{ID.format(1)}"):
            page = await owner.call("sessions_history", sessionKey=name)
            assert (page["sessionKey"], texts(page)) == (KEY, ["hello"])
        assert (await owner.call("sessions.resolve", key="mars/cron:nightly"))["key"] == "mars/agent:ops:cron:nightly"
        for name in ("main", "venus/main", "mars/agent:ops:none", "agent:ops:main"):
            assert (await owner.failure("sessions_history", sessionKey=name))["data"]["type"] == "not_found"


async def test_a_name_of_two_sessions_there_names_neither(tmp_path: Path) -> None:
    one_replica(tmp_path, line("hello"))
    one_replica(tmp_path, line("other"), number=2, key="agent:main:main", agent="main")
    async with daemon(tmp_path) as (_, owner):
        assert (await owner.failure("sessions_history", sessionKey="mars/main"))["data"]["type"] == "not_found"
        assert texts(await owner.call("sessions_history", sessionKey="mars/agent:main:main")) == ["other"]


async def test_search_usage_preview_and_raw_lines_have_it(tmp_path: Path) -> None:
    usage = {"input": 10, "output": 5, "totalTokens": 15}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "needle"}], "usage": usage, "model": "m"}
    body = {"type": "message", "id": "a1", "parentId": None, "timestamp": "2026-01-02T03:04:09.000Z"}
    one_replica(tmp_path, line("hello"), json.dumps({**body, "message": answer}).encode() + b"\n")
    async with daemon(tmp_path) as (_, owner):
        found = await owner.call("sessions_search", query="needle")
        assert [match["sessionKey"] for match in found["matches"]] == [KEY]
        for names, count in ((["machine"], 1), (["sessiond"], 0)):
            found = await owner.call("sessions_search", query="needle", sources=names)
            assert len(found["matches"]) == count
        used = await owner.call("sessions.usage")
        assert [(one["source"], one["totalTokens"]) for one in used["bySource"]] == [("machine", 15)]
        shown = await owner.call("sessions.preview", keys=["mars/main"])
        assert [item["text"] for item in shown["previews"][0]["items"]] == ["hello", "needle"]
        raw = await owner.call("sessions_history", sessionKey=KEY, raw=True)
        assert [one["type"] for one in raw["messages"]] == ["session", "message", "message"]


async def test_lists_are_narrowed_to_a_machine_and_to_sources(tmp_path: Path) -> None:
    one_replica(tmp_path, line("hello"))
    one_replica(tmp_path, line("hello"), machine="venus")
    async with daemon(tmp_path) as (_, owner):
        await owner.say("main", "ours")
        venus = "venus/agent:ops:main"
        assert (await rows(owner)).keys() == {"main", KEY, venus}
        assert (await rows(owner, machine="venus")).keys() == {venus}
        assert (await rows(owner, sources=["machine"])).keys() == {KEY, venus}
        assert (await rows(owner, sources=["sessiond"])).keys() == {"main"}
        assert (await rows(owner, agentId="ops")) == {}
        refused = await owner.failure("sessions_list", machine="No Name")
        assert refused["data"]["field"] == "$.machine"


async def test_what_is_added_replaced_and_removed_is_followed(tmp_path: Path) -> None:
    more = line("more", at_s=3)
    path = one_replica(tmp_path, line("hello"), more[:20])
    async with daemon(tmp_path) as (_, owner):
        await owner.call("sessions.messages.subscribe", key=KEY)
        await owner.call("sessions.subscribe")
        write_replica(path, more[20:])
        event = await owner.event("session.message")
        assert (event["sessionKey"], event["seq"], event["message"]["content"][0]["text"]) == (KEY, 2, "more")
        replace_replica(path, header(ID.format(1)), line("another"))
        assert (await owner.event("session.resync"))["reason"] == "rewritten"
        assert (await owner.event("session.message"))["message"]["content"][0]["text"] == "another"
        path.unlink()
        while (change := await owner.event("sessions.changed"))["phase"] != "delete":
            pass
        assert change == {"sessionKey": KEY, "phase": "delete", "reason": "file removed"}
        assert await rows(owner) == {}


async def test_a_machine_that_comes_while_the_daemon_runs_is_noticed_and_one_that_goes_too(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (_, owner):
        assert await rows(owner) == {}
        one_replica(tmp_path, line("hello"))
        one_replica(tmp_path, line("hello"), machine="venus")
        await wait_for_rows(owner, {KEY, "venus/agent:ops:main"})
        shutil.rmtree(tmp_path / "store/machines/venus")
        await wait_for_rows(owner, {KEY})
        shutil.rmtree(tmp_path / "store/machines")
        await wait_for_rows(owner, set())
        one_replica(tmp_path, line("again"))
        assert (await wait_for_rows(owner, {KEY}))[KEY]["title"] == "again"


async def test_a_replica_that_is_replaced_by_that_of_another_key_is_another_session(tmp_path: Path) -> None:
    path = one_replica(tmp_path, line("hello"))
    async with daemon(tmp_path) as (_, owner):
        replace_replica(path, header(ID.format(1), "agent:ops:moved"), line("hello"))
        await wait_for_rows(owner, {"mars/agent:ops:moved"})


async def test_of_two_replicas_with_one_key_the_newer_is_shown(tmp_path: Path) -> None:
    older = one_replica(tmp_path, line("older"))
    os.utime(older, (1, 1))
    newer = one_replica(tmp_path, line("newer"), number=2)
    async with daemon(tmp_path) as (_, owner):
        assert (await rows(owner))[KEY]["title"] == "newer"
        newer.unlink()
        with trio.fail_after(PATIENCE_S):
            while (await rows(owner)).get(KEY, {}).get("title") != "older":  # noqa: ASYNC110
                await trio.sleep(0.005)


async def test_after_a_reset_there_the_new_transcript_has_the_key_and_is_followed(tmp_path: Path) -> None:
    one_replica(tmp_path, line("before"))
    async with daemon(tmp_path) as (parts, owner):
        await owner.call("sessions.messages.subscribe", key=KEY)
        fresh = header(ID.format(2)).replace(b"2026-01-02", b"2026-02-02")
        path = write_replica(replica_path(tmp_path / "store", ID.format(2)), fresh)
        assert (await owner.event("session.resync"))["reason"] == "reset"
        write_replica(path, line("after"))
        event = await owner.event("session.message")
        assert (event["sessionId"], event["message"]["content"][0]["text"]) == (ID.format(2), "after")
        await parts.services.sources.save()
    async with daemon(tmp_path) as (_, owner):
        assert [row["title"] for row in (await rows(owner)).values()] == ["after"]


async def test_a_snapshot_that_says_another_key_is_not_believed(tmp_path: Path) -> None:
    one_replica(tmp_path, line("hello"))
    async with daemon(tmp_path) as (parts, owner):
        await parts.services.sources.save()
    cache = tmp_path / "store/cache/sources.jsonl"
    for key in (b"agent:main:main", b"venus/agent:ops:main"):
        cache.write_bytes(cache.read_bytes().replace(KEY.encode(), key))
        async with daemon(tmp_path) as (parts, owner):
            assert (await rows(owner)).keys() == {KEY}
            await parts.services.sources.save()


async def test_a_replica_takes_over_nothing_of_ours(tmp_path: Path) -> None:
    """Even one that has the id, the key, the label and the messages of a session of ours."""
    async with daemon(tmp_path) as (parts, owner):
        await owner.say("main", "a needle of ours")
        await owner.call("sessions.patch", key="main", label="mine")
        ours = parts.services.store.catalog.by_key["agent:main:main"]
        data = (parts.services.store.path / ours.path).read_bytes()
        aged = data.replace(b'"timestamp":"202', b'"timestamp":"200', 1)
        assert aged != data
        path = replica_path(tmp_path / "store", ours.session_id, agent="main")
        write_replica(path, aged)
        hers = "mars/agent:main:main"
        found = await wait_for_rows(owner, {"main", hers})
        assert found[hers]["label"] == "mine"
        assert (await owner.call("sessions.resolve", label="mine"))["key"] == "agent:main:main"
        assert (await owner.call("sessions.resolve", sessionId=ours.session_id))["key"] == "agent:main:main"
        page = await owner.call("sessions_history", sessionKey=ours.session_id)
        assert page["sessionKey"] == "agent:main:main"
        matches = (await owner.call("sessions_search", query="needle of ours", role="user"))["matches"]
        assert [match["sessionKey"] for match in matches] == ["agent:main:main"]
        # A label there is taken by nobody here.
        await owner.say("agent:main:two", "hello")
        await owner.call("sessions.patch", key="main", label=None)
        await owner.call("sessions.patch", key="agent:main:two", label="mine")
        assert (await owner.call("sessions.resolve", label="mine"))["key"] == "agent:main:two"


async def test_what_was_used_here_counts_here_though_an_older_replica_has_it_too(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": [], "usage": {"input": 7, "totalTokens": 7}, "model": "m"}
    body = {"type": "message", "id": "a1", "parentId": None, "timestamp": "2026-01-02T03:04:09.000Z"}
    said = line("hello", record_id="u1") + json.dumps({**body, "message": answer}).encode() + b"\n"
    own = tmp_path / "store/agents/main/sessions" / f"{ID.format(9)}.jsonl"
    write_replica(own, header(ID.format(9), "agent:main:main"), said)
    one_replica(tmp_path, said)
    aged = replica_path(tmp_path / "store", ID.format(2))
    write_replica(aged, header(ID.format(2), "agent:ops:old").replace(b"2026", b"1999"), said)
    async with daemon(tmp_path) as (_, owner):
        used = await owner.call("sessions.usage")
        assert [(one["key"], one["inputTokens"]) for one in used["bySession"]] == [("agent:main:main", 7)]
        assert used["totals"]["inputTokens"] == 7


async def test_who_says_that_a_session_of_ours_spawned_it_is_in_nobodys_tree(tmp_path: Path) -> None:
    path = replica_path(tmp_path / "store", ID.format(1))
    write_replica(path, header(ID.format(1), spawned_by="agent:main:main"), line("hello"))
    async with daemon(tmp_path, CONFIG.replace('"all"', '"tree"')) as (parts, owner):
        await owner.say("main", "ours")
        found = await rows(owner)
        assert found[KEY]["spawnedBy"] == "mars/agent:main:main"
        assert "childSessions" not in found["main"]
        async with parts.connect(READER) as reader:
            assert (await rows(reader)).keys() == {"main"}


RUN = {"runId": f"{ID.format(1)}.0123456789abcdef", "at": STARTED_MS}


async def test_an_open_run_there_is_shown_and_never_continued_here(tmp_path: Path) -> None:
    accepted = custom("sessiond/run", status="accepted", request={"message": "work"}, **RUN)
    path = one_replica(tmp_path, line("work"), accepted, custom("sessiond/run", status="running", **RUN))
    before = path.read_bytes()
    for _ in range(2):  # the second start has the snapshot
        async with daemon(tmp_path) as (parts, owner):
            row = (await rows(owner))[KEY]
            assert (row["state"], row["status"]) == ("running", "running")
            assert parts.services.store.catalog.unsettled_sessions() == []
            assert (await owner.call("daemon.status"))["liveRuns"] == 0
            await parts.services.sources.save()
    async with daemon(tmp_path) as (parts, owner):
        await owner.call("sessions.messages.subscribe", key=KEY)
        write_replica(path, custom("sessiond/run", status="accepted", **{**RUN, "runId": f"{ID.format(1)}.1"}))
        write_replica(path, line("more", at_s=5))
        await owner.event("session.message")
        assert parts.services.store.catalog.unsettled_sessions() == []
    assert path.read_bytes().startswith(before)


QUESTION = {
    "id": "00000000000000aa",
    "title": "May I?",
    "options": [{"id": "yes", "label": "Yes", "kind": "allow_once"}],
    "askedAt": STARTED_MS,
}


async def test_a_question_there_is_shown_open_and_is_not_answered_here(tmp_path: Path) -> None:
    path = one_replica(tmp_path, line("work"), custom("sessiond/question", **QUESTION))
    async with daemon(tmp_path) as (parts, owner):
        row = (await rows(owner))[KEY]
        assert (row["state"], row["waiting"]["title"]) == ("waiting", "May I?")
        shown = {"id": "00000000000000aa", "sessionKey": KEY, "agentId": "", "title": "May I?", "options": []}
        shown |= {"readOnly": True, "status": "open", "askedAt": STARTED_MS}
        for only in ({}, {"open": True}, {"sessionKey": KEY}):
            assert (await owner.call("questions.list", **only))["questions"] == [shown]
        assert (await owner.call("questions.list", open=False))["questions"] == []
        refused = await owner.failure("questions.answer", id="00000000000000aa", optionId="yes")
        assert (refused["data"]["code"], refused["data"]["sessionKey"]) == ("read_only", KEY)
        await owner.call("sessions.subscribe")
        answer = {"questionId": "00000000000000aa", "outcome": "answered", "optionId": "yes", "at": STARTED_MS + 1}
        write_replica(path, custom("sessiond/answer", **answer))
        assert (await owner.event("question.answered"))["id"] == "00000000000000aa"
        [ended] = (await owner.call("questions.list"))["questions"]
        assert (ended["status"], ended["readOnly"]) == ("answered", True)
        assert parts.services.store.catalog.asking_sessions() == []


async def test_nothing_changes_it_from_here(tmp_path: Path) -> None:
    path = one_replica(tmp_path, line("hello"))
    before = path.read_bytes()
    async with daemon(tmp_path) as (_, owner):
        calls: list[tuple[str, dict[str, Any]]] = [
            ("sessions.patch", {"key": KEY, "label": "x"}),
            ("sessions.reset", {"key": KEY}),
            ("sessions.delete", {"key": KEY}),
            ("chat.inject", {"sessionKey": KEY, "messages": [{"role": "user", "content": "x"}]}),
        ]
        for method, params in calls:
            refused = await owner.failure(method, **params)
            assert (method, refused["data"]["code"]) == (method, "read_only")
            assert "the machine mars" in refused["message"]
        assert "go to mars" in (await owner.failure("sessions_inbox", sessionKey=KEY))["message"]
        assert (await owner.failure("sessions.bytes", sessionId=ID.format(1)))["data"]["type"] == "not_found"
        assert (await owner.failure("sessions.create", key="mars/agent:ops:new"))["data"]["type"] != "internal"
        assert (await owner.failure("tokens.mint", sessionKey=KEY, scopes=["list"]))["data"]["type"] != "internal"
    assert path.read_bytes() == before


@check_each(
    ("config", "caller", "sees"),
    [
        (CONFIG, READER, True),
        (CONFIG, Caller(kind="token", scopes=READER.scopes, session_key="agent:main:main", sandboxed=True), False),
        (CONFIG.replace('"all"', '"agent"'), READER, False),
    ],
)
async def test_who_sees_the_sessions_of_other_programs_sees_them(
    tmp_path: Path, config: str, caller: Caller, sees: bool
) -> None:
    one_replica(tmp_path, line("a needle"))
    async with daemon(tmp_path, config) as (parts, owner):
        await owner.say("main", "hello")
        async with parts.connect(caller) as reader:
            assert (KEY in await rows(reader)) is sees
            found = await reader.call("sessions_search", query="needle")
            assert len(found["matches"]) == sees
            for name in (KEY, "mars/main", ID.format(1)):
                answer = await reader.answer(await reader.send("sessions_history", sessionKey=name))
                assert ("result" in answer) is sees


@check_each(
    "wrong",
    [
        "machines/Mars/agents/ops/sessions/x.jsonl",
        "machines/mars/agents/OPS/sessions/x.jsonl",
        "machines/mars/sessions/x.jsonl",
        "machines/mars/agents/ops/sessions/.x.jsonl",
        "machines/mars/agents/ops/sessions/deep/x.jsonl",
        "machines/" + "m" * 33 + "/agents/ops/sessions/x.jsonl",
    ],
)
def test_files_elsewhere_below_machines_are_none_of_a_session(wrong: str) -> None:
    assert FINDER.session_of(wrong.removeprefix("machines/")) is None


async def test_hostile_replicas_cost_only_themselves(tmp_path: Path) -> None:
    store = tmp_path / "store"
    good = one_replica(tmp_path, line("hello"))
    folder = good.parent
    (folder / "link.jsonl").symlink_to(good)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "empty.jsonl").touch()
    (folder / "torn.jsonl").write_bytes(b'{"type":"session"')
    (folder / "garbage.jsonl").write_bytes(os.urandom(3000) + b"\n")
    (folder / "zeros.jsonl").write_bytes(b"\0" * 100_000)
    (folder / "deep.jsonl").write_bytes(b"[" * 100_000 + b"\n")
    (folder / "key.jsonl").write_bytes(
        header("key", "agent:ops:main").replace(b"agent:ops:main", b"agent:main:main\\n")
    )
    (folder / "long.jsonl").write_bytes(header("long", "agent:ops:" + "x" * 600) + line("hello"))
    (folder / "attends.jsonl").write_bytes(header("attends", "agent:ops:a", attends="claude:abc") + line("hello"))
    write_replica(replica_path(store, "other"), header("other", "agent:ops:other"), line("fine"))
    async with daemon(tmp_path) as (parts, owner):
        found = await rows(owner)
        assert {KEY, "mars/agent:ops:other", "mars/agent:ops:a"} <= found.keys()
        assert found.keys() - {KEY, "mars/agent:ops:other", "mars/agent:ops:a"} <= {
            f"mars/agent:ops:import:{name}" for name in ("garbage", "zeros", "deep", "key", "long")
        }
        assert parts.services.store.catalog.attending_sessions() == []
        findings = (await owner.call("daemon.doctor"))["findings"]
        wrong = {one["thing"].rpartition("/")[2] for one in findings if one["level"] == "warn"}
        assert {"link.jsonl", "pipe.jsonl"} <= wrong
        assert not [one for one in findings if one["thing"] == "machines"]


async def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    one_replica(tmp_path, line("hello"))
    folder = tmp_path / "store/machines"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    async with daemon(tmp_path) as (_, owner):
        assert await rows(owner) == {}
        findings = (await owner.call("daemon.doctor"))["findings"]
        assert [one["what"] for one in findings if one["thing"] == "machines"] == ["a symlink; it is not followed"]
        folder.unlink()
        (tmp_path / "elsewhere").rename(folder)
        await wait_for_rows(owner, {KEY})


async def test_a_long_replica_is_partial_at_first_and_keeps_its_key(tmp_path: Path) -> None:
    filler = (line("x" * 1000, at_s=number) for number in range(300))
    one_replica(tmp_path, line("the first words"), *filler, b'{"type":"mess')
    async with daemon(tmp_path) as (parts, owner):
        row = (await rows(owner))[KEY]
        assert (row["title"], row["messageCount"]) == ("the first words", 301)
        assert parts.services.store.catalog.by_key[KEY].entry.session_key == KEY
        await parts.services.sources.save()
    async with daemon(tmp_path) as (parts, owner):
        assert (await rows(owner))[KEY]["messageCount"] == 301


async def test_the_key_of_an_adopted_transcript_may_come_later_than_its_beginning(tmp_path: Path) -> None:
    """As of sessions that were imported there: the record that adopted them, which has their key, is far behind."""
    session_id = ID.format(1)
    path = replica_path(tmp_path / "store", session_id)
    keyless = header(session_id).replace(b'"sessionKey":"agent:ops:main",', b"")
    assert b"sessionKey" not in keyless
    write_replica(path, keyless, line("hello"))
    provisional = f"mars/agent:ops:import:{session_id}"
    async with daemon(tmp_path) as (parts, owner):
        assert (await rows(owner)).keys() == {provisional}
        write_replica(path, *(line("x" * 1000, at_s=number) for number in range(200)))
        await parts.services.sources.save()
    async with daemon(tmp_path) as (parts, owner):
        await wait_for_rows(owner, {provisional})
        write_replica(path, custom("sessiond/entry", sessionKey="agent:ops:main", label="adopted"))
        row = (await wait_for_rows(owner, {KEY}))[KEY]
        assert (row["sessionId"], row["title"]) == (session_id, "hello")
        await parts.services.sources.save()
    async with daemon(tmp_path) as (parts, owner):
        assert (await rows(owner)).keys() == {KEY}
        assert parts.services.store.catalog.by_key[KEY].entry.message_count == 201


def test_a_transcript_without_a_key_has_the_one_that_adopted_it() -> None:
    adopting = custom("sessiond/entry", sessionKey="agent:ops:adopted")
    head = b'{"type":"session","version":3,"id":"x"}\n' + line("sessiond/entry is a word") + adopting
    assert _adopted_key(head, head.find(b"\n")) == "agent:ops:adopted"
    assert _adopted_key(head[:-1], head.find(b"\n")) is None


@given(text=st.binary(max_size=200), key=st.text(max_size=40))
def test_whatever_the_first_line_says_there_is_a_key_or_none(text: bytes, key: str) -> None:
    for one in (text, json.dumps({"type": "session", "sessionKey": key}).encode()):
        found = _key_of_line(one, "session")
        assert found is None or found.startswith("agent:")
        _adopted_key(one + b"\nsessiond/entry" + one + b"\n", len(one))


@given(
    data=st.dictionaries(
        st.sampled_from(["continues", "attends", "notify", "label", "spawnedBy", "sessionKey", "inboxCursor", "spawn"]),
        st.sampled_from(["agent:main:main", "claude:abc", "x", True, {"requesterKey": "agent:main:main"}]),
    )
)
def test_what_holds_only_there_is_not_in_the_entry(data: dict[str, Any]) -> None:
    entry = begin_foreign(SourceFacts(name="machine", found=FoundFacts(key=KEY)), "native")
    for offset, text in enumerate((header("native", "agent:x:y"), custom("sessiond/entry", **data))):
        entry = REPLICA.fold(entry, REPLICA.parse(text.rstrip()), offset, 1)
    fresh = Entry(session_id="native")
    names = ("continues", "attends", "notify", "inbox_cursor", "talks", "keyed", "hook")
    assert [getattr(entry, name) for name in names] == [getattr(fresh, name) for name in names]
    assert entry.session_key == KEY
    assert entry.spawned_by is None or entry.spawned_by.startswith("mars/agent:")
