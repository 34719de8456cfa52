"""`hooks.report`: what a program in a terminal does shows in its row, and its messages reach it at its next turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from support.foreign_daemon import CONFIG, READER, daemon, home_of
from support.foreign_sessions import UUID
from support.hooked import ID, KEY, Shift, claude_file, claude_line, claude_path, named, report
from support.in_process import Connection, InProcessDaemon
from support.rows import check_each

from sessiond.conversations.handing_over import LEASE_S
from sessiond.model.caller import Caller
from sessiond.model.hook import LIVE_MS
from sessiond.model.record import ENTRY
from sessiond.store.store import Custom

OTHER = UUID.format(2)


async def row(owner: Connection, key: str = KEY) -> dict[str, Any]:
    [found] = [one for one in (await owner.call("sessions_list"))["sessions"] if one["key"] == key]
    return dict(found)


async def keys(owner: Connection, **params: Any) -> list[str]:
    return sorted(one["key"] for one in (await owner.call("sessions_list", **params))["sessions"])


def attending(parts: InProcessDaemon, key: str = KEY) -> Any:
    return parts.services.store.catalog.attending(key)


async def test_the_state_of_a_session_follows_its_hooks(tmp_path: Path) -> None:
    path, shift = claude_file(tmp_path), Shift()
    async with daemon(tmp_path, clock=shift.clock) as (_, owner):
        assert (await row(owner))["state"] == "idle"
        await owner.call("sessions.subscribe")
        for event, state in [
            ("SessionStart", "idle"),
            ("UserPromptSubmit", "running"),
            ("PermissionRequest", "running"),
            ("Notification", "waiting"),
            ("Stop", "done"),
            ("UserPromptSubmit", "running"),
            ("SessionEnd", "idle"),
        ]:
            assert await report(owner, tmp_path, event) == {"known": True}
            assert (await row(owner))["state"] == state, event
            changed = await owner.event("sessions.changed")
            assert (changed["sessionKey"], changed["phase"], changed["row"]["state"]) == (KEY, "patch", state)
        assert await report(owner, tmp_path, "PostToolUse") == {"known": True}, "others are none of its business"
        assert (await row(owner))["state"] == "idle"
        # What the program writes after it has said that it waits: somebody has answered there.
        await report(owner, tmp_path, "Notification")
        with path.open("ab") as file:
            file.write(claude_line("it ran", "assistant", at="2099-01-01T00:00:00.000Z"))
        while (await owner.event("sessions.changed"))["phase"] != "message":
            pass
        assert (await row(owner))["state"] == "running"
        # The program is gone without a word.
        shift.by_s = LIVE_MS / 1000
        assert (await row(owner))["state"] == "idle"


async def test_what_attends_a_session_is_in_no_list(tmp_path: Path) -> None:
    claude_file(tmp_path, "the heron")
    async with daemon(tmp_path) as (parts, owner):
        before = await owner.call("sessions_list", includeArchived=True)
        usage = await owner.call("sessions.usage")
        status = await owner.call("daemon.status")
        await report(owner, tmp_path, "UserPromptSubmit")
        sent = await owner.call("sessions_send", sessionKey=KEY, message="the heron is grey", timeoutSeconds=0)
        assert (sent["status"], sent["reason"], sent["sessionKey"]) == ("accepted", "inbox", KEY)
        [session] = parts.services.store.catalog.by_id.values()
        assert session is attending(parts)
        after = await owner.call("sessions_list", includeArchived=True)
        assert [{**one, "state": "idle"} for one in after["sessions"]] == before["sessions"]
        assert await owner.call("sessions.usage") == usage
        findings = (await owner.call("daemon.doctor"))["findings"]
        assert not [one for one in findings if session.session_id in str(one)]
        assert (await owner.call("daemon.status"))["sessions"] == status["sessions"]
        found = await owner.call("sessions_search", query="heron")
        assert [match["sessionKey"] for match in found["matches"]] == [KEY]
        assert (await owner.call("sessions_search", query="grey", includeArchived=True))["matches"] == []
        for name in (session.session_id, session.stored_key, session.session_id[:8]):
            assert (await owner.failure("sessions.resolve", key=name))["data"]["type"] == "not_found", name
            assert (await owner.failure("sessions_history", sessionKey=name))["data"]["type"] == "not_found", name
        assert (await owner.call("sessions.prune", olderThanMs=0))["removed"] == []
        read = await owner.call("sessions_history", sessionKey=KEY)
        assert [message["content"] for message in read["messages"]] == ["the heron"]
        for method in ("sessions.reset", "sessions.delete"):
            assert (await owner.failure(method, key=KEY))["data"]["code"] == "read_only"
        # Its run has ended as soon as it was accepted, and is its sender's to see.
        ended = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=0)
        assert (ended["status"], ended["sessionKey"]) == ("ok", KEY)


async def test_it_is_known_again_after_a_restart_and_when_its_index_is_lost(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        await owner.call("sessions_send", sessionKey=KEY, message="still there?")
        name = attending(parts).session_id
    for index in sorted((tmp_path / "store").rglob("sessions.json")):
        index.unlink()
    async with daemon(tmp_path) as (parts, owner):
        assert attending(parts).session_id == name
        # Whether the turn has ended meanwhile, nobody could tell it.
        assert (await row(owner))["state"] == "idle"
        assert await keys(owner) == [KEY]
        assert "still there?" in (await report(owner, tmp_path, "UserPromptSubmit"))["context"]


async def test_a_message_is_handed_over_once_it_has_arrived(tmp_path: Path) -> None:
    claude_file(tmp_path)
    shift = Shift()
    async with daemon(tmp_path, clock=shift.clock) as (parts, owner):
        await report(owner, tmp_path, "SessionStart")
        async with parts.connect(READER) as other:
            sent = await other.call("sessions_send", sessionKey=KEY, message="the build is red")
            assert (sent["status"], sent["reason"]) == ("accepted", "inbox")
        await owner.call("chat.send", sessionKey=KEY, message="and look at the heron")
        first = await report(owner, tmp_path, "UserPromptSubmit")
        assert "[from the session agent:main:main, " in first["context"]
        assert "the build is red" in first["context"]
        assert "does not speak for your user" in first["context"]
        assert "[from the owner, " in first["context"] and "and look at the heron" in first["context"]
        # Another hook at the same time gets none of it.
        assert await report(owner, tmp_path, "UserPromptSubmit") == {"known": True}
        assert await report(owner, tmp_path, "Stop") == {"known": True}
        # One that never said that it arrived: it comes again.
        shift.by_s += LEASE_S
        again = await report(owner, tmp_path, "SessionStart")
        assert again["context"] == first["context"]
        assert await report(owner, tmp_path, "SessionStart", receipt=again["receipt"]) == {"known": True}
        shift.by_s += LEASE_S
        assert await report(owner, tmp_path, "UserPromptSubmit") == {"known": True}
        assert await report(owner, tmp_path, "UserPromptSubmit", receipt="0000") == {"known": True}


async def test_the_owner_sees_what_waits_for_a_session_in_a_terminal(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        error = await owner.failure("sessions_inbox", sessionKey=KEY)
        assert error["data"]["code"] == "no_inbox" and "an agent runs" not in error["message"]
        await report(owner, tmp_path, "SessionStart")
        for text in ("the build is red", "and the heron is grey"):
            await owner.call("chat.send", sessionKey=KEY, message=text)
        async with parts.connect(READER) as other:
            assert (await other.failure("sessions_inbox", sessionKey=KEY))["data"]["type"] == "forbidden"
        page = await owner.call("sessions_inbox", sessionKey=KEY)
        assert page == await owner.call("sessions_inbox", sessionKey=KEY), "a look marks nothing as read"
        assert page["sessionKey"] == KEY
        assert [one["text"] for one in page["messages"]] == ["the build is red", "and the heron is grey"]
        # What the owner has read is not handed over.
        await owner.call("sessions_inbox", sessionKey=KEY, cursor=page["messages"][0]["cursor"])
        handed = await report(owner, tmp_path, "UserPromptSubmit")
        assert "the build is red" not in handed["context"]
        await report(owner, tmp_path, "UserPromptSubmit", receipt=handed["receipt"])
        assert (await owner.call("sessions_inbox", sessionKey=KEY))["messages"] == []


async def test_what_waits_for_the_program_comes_after_what_waits_for_the_session(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (_, owner):
        await owner.call("sessions.create", key="agent:main:mcp:claude-code")
        await owner.call("sessions_send", sessionKey="mcp:claude-code", message="for any of you")
        handed = await report(owner, tmp_path, "SessionStart")
        assert "for any of you" in handed["context"]
        await report(owner, tmp_path, "SessionStart", receipt=handed["receipt"])
        inbox = await owner.call("sessions_inbox", sessionKey="mcp:claude-code")
        assert inbox["messages"] == [], "it is read there too"
        await owner.call("sessions_send", sessionKey="mcp:claude-code", message="second")
        await owner.call("sessions_send", sessionKey=KEY, message="first")
        context = (await report(owner, tmp_path, "UserPromptSubmit"))["context"]
        assert context.index("first") < context.index("second")


async def test_many_messages_come_with_one_turn_after_the_other_and_a_long_one_whole(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (_, owner):
        await report(owner, tmp_path, "SessionStart")
        texts = [f"{number}: " + "x" * 4000 for number in range(3)] + ["y" * 20_000]
        for text in texts:
            await owner.call("chat.send", sessionKey=KEY, message=text)
        got = []
        while "context" in (handed := await report(owner, tmp_path, "UserPromptSubmit")):
            got.append(handed["context"])
            await report(owner, tmp_path, "UserPromptSubmit", receipt=handed["receipt"])
        assert [[text in context for text in texts] for context in got] == [
            [True, True, False, False],
            [False, False, True, False],
            [False, False, False, True],
        ]
        assert all(len(context) < 10_000 for context in got[:2])
        assert ["More wait" in context for context in got] == [True, True, False]


async def test_a_message_sent_twice_with_its_key_waits_once(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (_, owner):
        await report(owner, tmp_path, "SessionStart")
        sent = [
            await owner.call("sessions_send", sessionKey=KEY, message="once", idempotencyKey="k1") for _ in range(2)
        ]
        assert sent[0]["runId"] == sent[1]["runId"]
        assert (await report(owner, tmp_path, "UserPromptSubmit"))["context"].count("once") == 1


async def test_files_are_refused_and_commands_of_the_owner_are_none(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (_, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        files = [{"name": "a.txt", "content": "x"}]
        error = await owner.failure("chat.send", sessionKey=KEY, message="look", attachments=files)
        assert error["data"]["code"] == "attachments_unsupported"
        steered = await owner.call("sessions.steer", key=KEY, message="the other way")
        assert steered["interrupted"] == []
        context = (await report(owner, tmp_path, "UserPromptSubmit"))["context"]
        assert "the other way" in context and "look" not in context
        assert sorted(path.name for path in (tmp_path / "store" / "agents").iterdir()) == ["main"]


async def test_a_session_that_has_ended_in_its_terminal_is_continued(tmp_path: Path) -> None:
    claude_file(tmp_path)
    shift = Shift()
    async with daemon(tmp_path, clock=shift.clock) as (_, owner):
        for event in ("SessionStart", "SessionEnd"):
            await report(owner, tmp_path, event)
        error = await owner.failure("sessions_send", sessionKey=KEY, message="go on")
        assert error["data"]["code"] == "no_agent_for_source"
        await report(owner, tmp_path, "UserPromptSubmit")
        assert (await owner.call("sessions_send", sessionKey=KEY, message="go on"))["reason"] == "inbox"
        shift.by_s = LIVE_MS / 1000
        error = await owner.failure("sessions_send", sessionKey=KEY, message="go on")
        assert error["data"]["code"] == "no_agent_for_source"


async def test_the_send_policy_holds_for_a_session_in_a_terminal(tmp_path: Path) -> None:
    claude_file(tmp_path)
    rule = '[[session.sendPolicy.rules]]\nmatch = { keyPrefix = "claude:" }\naction = "deny"\n'
    async with daemon(tmp_path, CONFIG + rule) as (_, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        error = await owner.failure("sessions_send", sessionKey=KEY, message="hello")
        assert error["data"]["code"] == "send_denied"


async def test_a_start_and_an_end_of_what_has_no_file_are_not_kept(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        for event in ("SessionStart", "SessionEnd"):
            assert await report(owner, tmp_path, event, OTHER) == {"known": True}
        assert attending(parts, f"claude:{OTHER}") is None
        await report(owner, tmp_path, "UserPromptSubmit", OTHER)
        assert attending(parts, f"claude:{OTHER}") is not None
        assert await keys(owner) == [KEY], "there is no file yet"
        claude_file(tmp_path, session=OTHER)
        await owner.call("sessions.subscribe")
        while f"claude:{OTHER}" not in await keys(owner):
            await owner.event("sessions.changed")
        assert (await row(owner, f"claude:{OTHER}"))["state"] == "running"


async def test_two_hooks_at_once_make_one_transcript(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        sent = [await owner.send("hooks.report", **named(tmp_path, "UserPromptSubmit")) for _ in range(20)]
        answers = [await owner.receive() for _ in sent]
        assert sorted(one["id"] for one in answers) == sent
        assert all(one["result"] == {"known": True} for one in answers)
        assert len(parts.services.store.catalog.by_id) == 1


@check_each(
    "params",
    [
        {"transcriptPath": "/etc/passwd"},
        {"transcriptPath": "relative.jsonl"},
        {"transcriptPath": ""},
        {"transcriptPath": "{home}/.claude/projects/x/../-home-me/{id}.jsonl"},
        {"transcriptPath": "{home}/.claude/projects/{id}.jsonl"},
        {"transcriptPath": "{home}/.claude/projects/x/y/{id}.jsonl"},
        {"transcriptPath": "{home}/.claude/projects/x/other.jsonl"},
        {"transcriptPath": "{home}/.claude/../.claude/projects/x/{id}.jsonl"},
        {"transcriptPath": "{home}/.claude/projects/x//{id}.jsonl"},
        {"transcriptPath": "{home}/.claude/projects/x/{id}.jsonl\x00"},
        {"sessionId": "../../etc"},
        {"sessionId": ""},
        {"sessionId": "ü"},
    ],
    ids=str,
)
async def test_what_is_no_session_of_a_program_is_not_known(tmp_path: Path, params: dict[str, str]) -> None:
    claude_file(tmp_path)
    given = {name: text.format(home=home_of(tmp_path), id=ID) for name, text in params.items()}
    async with daemon(tmp_path) as (parts, owner):
        assert await owner.call("hooks.report", **{**named(tmp_path, "Stop"), **given}) == {"known": False}
        assert not parts.services.store.catalog.by_id


async def test_only_the_owner_may_report(tmp_path: Path) -> None:
    claude_file(tmp_path)
    admin = Caller(kind="token", scopes=frozenset({"admin"}), token_id="t")
    async with daemon(tmp_path) as (parts, _), parts.connect(admin) as other:
        for method, more in (("hooks.report", {}), ("hooks.ask", {"title": "x", "options": []})):
            error = await other.failure(method, **named(tmp_path, "Stop"), **more)
            assert error["data"]["type"] in ("forbidden", "invalid_params"), error


async def test_a_session_that_a_run_of_ours_wrote_is_left_alone(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await owner.say("main", "hello")
        session = parts.services.store.catalog.by_key["agent:main:main"]
        await parts.services.store.append(session, [Custom(ENTRY, {"nativeSessionId": ID})])
        assert await report(owner, tmp_path, "UserPromptSubmit") == {"known": False}


async def test_a_root_that_is_a_symlink_is_known_under_both_names(tmp_path: Path) -> None:
    claude_file(tmp_path)
    real = home_of(tmp_path) / ".claude"
    moved = tmp_path / "elsewhere"
    real.rename(moved)
    real.symlink_to(moved)
    async with daemon(tmp_path) as (_, owner):
        paths = [claude_path(tmp_path), moved / claude_path(tmp_path).relative_to(real)]
        for path in paths:
            params = {**named(tmp_path, "Stop"), "transcriptPath": str(path)}
            assert await owner.call("hooks.report", **params) == {"known": True}


async def test_its_transcript_may_be_removed_and_copied_like_any_other(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        await owner.call("sessions.subscribe")
        first = attending(parts)
        path = tmp_path / "store" / first.path
        kept = path.read_bytes()
        # A copy beside it, as of a backup: the original stays the one.
        copy = path.with_name("aaaaaaaa-copy.jsonl")
        copy.write_bytes(kept)
        while len(parts.services.store.catalog.by_id) < 2:  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.005)
        assert attending(parts) is first
        path.unlink()
        while attending(parts) is first:  # noqa: ASYNC110
            await trio.sleep(0.005)
        copy.unlink()
        while attending(parts) is not None:  # noqa: ASYNC110
            await trio.sleep(0.005)
        assert (await row(owner))["state"] == "idle"
        await report(owner, tmp_path, "Stop")
        assert (await row(owner))["state"] == "done"
        path.write_bytes(kept)
        while first.session_id not in parts.services.store.catalog.by_id:  # noqa: ASYNC110
            await trio.sleep(0.005)
        # Of two the newer one counts, as of two sessions of one key.
        assert (await row(owner))["state"] == "done"
        assert await keys(owner) == [KEY]
        assert await keys(owner, includeArchived=True) == [KEY]
        changed = [one["params"] for one in owner.events if one["method"] == "sessions.changed"]
        assert {one["sessionKey"] for one in changed} == {KEY}
        assert not [one for one in owner.events if one["method"] == "session.message"]


async def test_a_transcript_that_was_rewritten_still_attends_its_session(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        session = attending(parts)
        path = tmp_path / "store" / session.path
        path.write_bytes(b"")
        await report(owner, tmp_path, "Stop")
        assert attending(parts) is session
        # It may be read a moment later, as the rewritten transcript of any session.
        while (await row(owner))["state"] != "done":  # noqa: ASYNC110
            await trio.sleep(0.005)
        assert json.loads(path.read_bytes().splitlines()[0])["attends"] == KEY
        assert await keys(owner) == [KEY]


async def test_a_report_counts_that_is_written_while_its_rewritten_transcript_is_adopted(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await report(owner, tmp_path, "UserPromptSubmit")
        session, store = attending(parts), parts.services.store
        path = tmp_path / "store" / session.path
        kept = path.read_bytes()
        async with trio.open_nursery() as nursery, store.committer.hold_exclusively(session):
            path.write_bytes(b"")
            # Of two files the first that changed is read first.
            path.with_name("aaaaaaaa-copy.jsonl").write_bytes(kept)
            while len(store.catalog.by_id) < 2:  # noqa: ASYNC110
                await trio.sleep(0.005)
            nursery.start_soon(report, owner, tmp_path, "Stop")
            while not session.in_flight:  # noqa: ASYNC110
                await trio.sleep(0.005)
        while (await row(owner))["state"] != "done":  # noqa: ASYNC110
            await trio.sleep(0.005)
        assert attending(parts) is session
