"""Sessions of other programs in lists: their rows, the filters, and who sees them. Real files below a home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import trio
from support.foreign_daemon import READER, daemon, home_of
from support.foreign_sessions import UUID, key_of, pi_file, pi_header, pi_line
from support.in_process import Connection
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.model.caller import Caller
from sessiond.sessions import listing

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"


async def rows(connection: Connection, **params: Any) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in (await connection.call("sessions_list", **params))["sessions"]}


async def test_the_row_of_another_programs_session(tmp_path: Path) -> None:
    parent = pi_header("forked", parentSession=f"/x/2026_{UUID.format(1)}.jsonl")
    path = pi_file(home_of(tmp_path), 1, "  what\tis this?\nsecond line")
    fork = path.with_name("2026-01-02T03-04-06-000Z_forked.jsonl")
    fork.write_bytes(parent + pi_line("go on"))
    async with daemon(tmp_path) as (_, owner):
        found = await rows(owner)
        row = found[key_of(1)]
        assert (row["kind"], row["channel"], row["source"], row["readOnly"]) == ("other", "unknown", "pi", True)
        assert (row["nativeId"], row["sessionId"]) == (UUID.format(1),) * 2
        assert (row["title"], row["cwd"], row["messageCount"]) == ("what is this?", "/home/me", 1)
        assert row["transcriptPath"] == str(path)
        assert not {"partial", "forkedFrom", "childSessions"} & row.keys()
        assert found["pi:forked"]["forkedFrom"] == key_of(1)


async def test_our_own_rows_have_a_source_a_title_and_the_id_of_the_program(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (parts, owner):
        await owner.say("main", "  first   words \n more")
        await owner.say("main", "later words")
        session = parts.services.store.catalog.by_key["agent:main:main"]
        [row] = (await rows(owner)).values()
        assert (row["source"], row["title"]) == ("sessiond", "first words")
        assert not {"readOnly", "nativeId"} & row.keys()
        await owner.call("sessions.patch", key="main", displayName="My name")
        assert (await rows(owner))["main"]["title"] == "My name", "what a person gave wins"
        await parts.services.store.append(session, [_entry_record({"nativeSessionId": "abc 120 40"})])
        assert (await rows(owner))["main"]["nativeId"] == "abc"


async def test_a_session_of_ours_lists_the_sub_agents_of_the_session_that_it_carries(tmp_path: Path) -> None:
    project = home_of(tmp_path) / ".claude" / "projects" / "-work"
    (project / UUID.format(1) / "subagents").mkdir(parents=True)
    agent = project / UUID.format(1) / "subagents" / "agent-a1b2.jsonl"
    told = {"type": "user", "uuid": "u1", "sessionId": UUID.format(1), "agentId": "a1b2", "isSidechain": True}
    told |= {"timestamp": "2026-01-02T03:04:05.000Z", "message": {"role": "user", "content": "a task"}}
    agent.write_text(json.dumps(told) + "\n")
    async with daemon(tmp_path) as (parts, owner):
        await owner.say("main", "hello")
        assert (await rows(owner))["claude:agent-a1b2"]["spawnedBy"] == f"claude:{UUID.format(1)}"
        assert "childSessions" not in (await rows(owner))["main"]
        session = parts.services.store.catalog.by_key["agent:main:main"]
        await parts.services.store.append(session, [_entry_record({"nativeSessionId": UUID.format(1)})])
        assert (await rows(owner))["main"]["childSessions"] == ["claude:agent-a1b2"]
        narrow = msgspec.structs.replace(READER, sandboxed=True)
        async with parts.connect(narrow) as reader:
            [row] = (await rows(reader)).values()
            assert "childSessions" not in row, "who may not see the sub-agents is not told of them"


async def test_a_row_names_the_newest_sub_agents_and_a_list_all_of_them(tmp_path: Path) -> None:
    subagents = home_of(tmp_path) / ".claude" / "projects" / "-work" / UUID.format(1) / "subagents"
    subagents.mkdir(parents=True)
    most = listing.MAX_CHILDREN

    def write(number: int) -> str:
        told = {"type": "user", "uuid": "u1", "agentId": f"a{number}", "isSidechain": True}
        told |= {"timestamp": f"2026-01-02T03:{number // 60:02}:{number % 60:02}.000Z"}
        told |= {"message": {"role": "user", "content": "a task"}}
        (subagents / f"agent-a{number}.jsonl").write_text(json.dumps(told) + "\n")
        return f"claude:agent-a{number}"

    keys = [write(number) for number in range(most)]
    parent = subagents.parents[1] / f"{UUID.format(1)}.jsonl"
    said = {"type": "user", "uuid": "u", "timestamp": "2026-01-02T04:04:05.000Z"}
    parent.write_text(json.dumps(said | {"message": {"role": "user", "content": "hello"}}) + "\n")
    key = f"claude:{UUID.format(1)}"
    async with daemon(tmp_path) as (parts, owner):
        assert (await rows(owner))[key]["childSessions"] == keys
        keys.append(write(most))
        with trio.fail_after(PATIENCE_S):
            while keys[-1] not in parts.services.store.catalog.by_key:  # noqa: ASYNC110 - the watcher has no event
                await trio.sleep(0.005)
        assert (await rows(owner))[key]["childSessions"] == keys[1:]
        assert set(await rows(owner, spawnedBy=key, limit=200)) == set(keys)


def _entry_record(data: dict[str, Any]) -> Any:
    from sessiond.model.record import ENTRY
    from sessiond.store.store import Custom

    return Custom(ENTRY, data)


async def test_what_another_session_began_one_for_is_its_task_and_no_title(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (_, owner):
        await owner.call("sessions.create", key="agent:main:parent")
        await owner.call("sessions.create", key="agent:main:child", parentSessionKey="agent:main:parent")
        await owner.say("agent:main:child", "a task")
        note = {"role": "user", "content": "from another", "provenance": {"kind": "inter_session"}}
        await owner.call("chat.inject", sessionKey="agent:main:parent", messages=[note])
        found = await rows(owner)
        for key, task in (("agent:main:child", "a task"), ("agent:main:parent", "from another")):
            assert ("title" in found[key], found[key]["task"]) == (False, task)


@check_each(
    ("sources", "keys"),
    [
        (["pi"], {key_of(1)}),
        (["sessiond"], {"main"}),
        (["sessiond", "pi"], {key_of(1), "main"}),
        (["claude", "codex", "gemini", "opencode"], set()),
    ],
)
async def test_a_list_of_chosen_sources(tmp_path: Path, sources: list[str], keys: set[str]) -> None:
    pi_file(home_of(tmp_path), 1, "one")
    async with daemon(tmp_path) as (_, owner):
        await owner.say("main", "hello")
        assert set(await rows(owner, sources=sources)) == keys


@check_each("sources", [[], ["pi", "nonsense"], "pi", [1]])
async def test_sources_that_are_none_or_unknown_are_refused(tmp_path: Path, sources: Any) -> None:
    async with daemon(tmp_path) as (_, owner):
        for method in ("sessions_list", "sessions.list"):
            error = await owner.failure(method, sources=sources)
            assert (error["code"], error["data"]["field"].startswith("$.sources")) == (-32602, True)


@check_each(
    ("cwd", "fits"),
    [
        ("/home/me", True),
        ("/home/me/", True),
        ("//home/./me/x/..", True),
        ("/home", True),
        ("/", True),
        ("/home/m", False),
        ("/home/me/work", False),
        ("/home/ME", False),
    ],
)
async def test_a_list_of_what_was_done_in_a_folder_or_below(tmp_path: Path, cwd: str, fits: bool) -> None:
    pi_file(home_of(tmp_path), 1, "one")
    async with daemon(tmp_path) as (_, owner):
        assert set(await rows(owner, cwd=cwd)) == ({key_of(1)} if fits else set())


@check_each("cwd", ["", "work", "~/work", "/a\0b"])
async def test_a_folder_that_is_no_absolute_path_is_refused(tmp_path: Path, cwd: str) -> None:
    async with daemon(tmp_path) as (_, owner):
        error = await owner.failure("sessions_list", cwd=cwd)
        assert (error["code"], error["data"]["field"]) == (-32602, "$.cwd")


async def test_the_list_is_searched_in_titles_and_ids_of_programs(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, "Repair the ROOF")
    pi_file(home_of(tmp_path), 2, "something else")
    async with daemon(tmp_path) as (_, owner):
        assert set(await rows(owner, search="the roof")) == {key_of(1)}
        assert set(await rows(owner, search=UUID.format(2).upper())) == {key_of(2)}


async def test_an_answer_says_how_many_sessions_its_filters_may_have_missed(tmp_path: Path) -> None:
    # A middle so long that the cwd and the title of the end are not known from both ends alone.
    path = pi_file(home_of(tmp_path), 1, "one")
    async with daemon(tmp_path) as (parts, owner):
        store = parts.services.store
        session = store.catalog.by_key[key_of(1)]
        whole = session.entry
        from msgspec.structs import replace

        partial = replace(whole, source=replace(whole.source, partial=True, title=None), cwd=None)
        store.catalog.replace(session, partial)
        for params, missed in (
            ({}, None),
            ({"search": "zebra"}, 1),
            ({"search": key_of(1)}, None),
            ({"cwd": "/home/me"}, 1),
            ({"spawnedBy": "pi:parent"}, 1),
            ({"cwd": "/home/me", "sources": ["sessiond"]}, None),
            ({"search": "zebra", "kinds": ["main"]}, None),
        ):
            assert (await owner.call("sessions_list", **params)).get("partial") == missed, params
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert row["partial"] is True
        assert "messageCount" not in row
        store.catalog.replace(session, replace(partial, cwd="/elsewhere"))
        assert "partial" not in await owner.call("sessions_list", cwd="/home/me"), "what is known was not missed"
    assert path.exists()


async def test_titles_are_messages_for_those_who_may_not_read_and_masked_for_tokens(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, f"key {SECRET}")
    lister = Caller(kind="token", scopes=frozenset({"list"}), session_key="agent:main:main", token_id="l")
    async with daemon(tmp_path) as (parts, owner), parts.connect(lister) as blind, parts.connect(READER) as reader:
        note = {"role": "user", "content": f"with {SECRET}", "provenance": {"kind": "inter_session"}}
        await owner.call("sessions.create", key="agent:main:begun")
        await owner.call("chat.inject", sessionKey="agent:main:begun", messages=[note])
        assert SECRET[:20] in (await rows(owner))[key_of(1)]["title"]
        assert SECRET[:20] in (await rows(owner))["agent:main:begun"]["task"]
        assert (await rows(reader))["agent:main:begun"]["task"].startswith("with ")
        assert "task" not in (await rows(blind))["agent:main:begun"]
        assert "title" not in (await rows(blind))[key_of(1)]
        assert await rows(blind, search="key") == {}
        assert SECRET[:20] not in json.dumps(await rows(reader))
        assert await rows(reader, search=SECRET[:20]) == {}, "nobody finds a masked secret by searching for it"
        assert set(await rows(reader, search="key ")) == {key_of(1)}


async def test_a_title_that_was_cut_within_a_secret_shows_no_half_of_it(tmp_path: Path) -> None:
    text = "x" * 60 + " " + SECRET
    pi_file(home_of(tmp_path), 1, text)
    async with daemon(tmp_path) as (parts, owner), parts.connect(READER) as reader:
        assert (await rows(owner))[key_of(1)]["title"] == text[:80]
        assert (await rows(reader))[key_of(1)]["title"] == "x" * 60


async def test_the_rows_with_previews_are_those_of_the_list(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, "first", "last")
    async with daemon(tmp_path) as (_, owner):
        [row] = (await owner.call("sessions.list", sources=["pi"]))["sessions"]
        assert (row["derivedTitle"], row["lastMessagePreview"]) == ("first", "last")


def test_folders_are_compared_by_segments() -> None:
    assert listing.is_below("/a/b", "/a")
    assert listing.is_below("/a//b/", "/a/b")
    assert not listing.is_below("/ab", "/a")
    assert not listing.is_below("relative", "/")
