"""`hooks.ask`: a permission in a terminal is a question of that session; whoever waits gets one answer or none."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from support.foreign_daemon import READER, daemon
from support.hooked import KEY, OPTIONS, Shift, claude_file, claude_line, named, report, send_ask
from support.patience import PATIENCE_S
from support.questions import wait_for_question

from sessiond.model.caller import Caller

ANSWERER = Caller(kind="token", scopes=frozenset({"list", "answer"}), agent_id="other", token_id="t")


async def test_a_permission_is_a_question_of_the_session_in_the_terminal(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        await report(owner, tmp_path, "UserPromptSubmit")
        await owner.call("sessions.subscribe")
        asking = await send_ask(hook, tmp_path)
        asked = await owner.event("question.asked")
        assert (asked["sessionKey"], asked["question"]["title"]) == (KEY, "Bash: ls")
        changed = await owner.event("sessions.changed")
        assert (changed["sessionKey"], changed["row"]["state"]) == (KEY, "waiting")
        question = await wait_for_question(owner, sessionKey=KEY)
        assert (question["sessionKey"], question["agentId"], question["options"]) == (KEY, "", OPTIONS)
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert (row["state"], row["waiting"]["questions"], row["waiting"]["title"]) == ("waiting", 1, "Bash: ls")
        await owner.call("questions.answer", id=question["id"], optionId="deny", note="not now")
        answer = (await hook.answer(asking))["result"]
        assert {**answer, "questionId": ""} == {
            "questionId": "",
            "outcome": "answered",
            "optionId": "deny",
            "note": "not now",
            "answeredBy": "owner",
        }
        assert (await owner.event("question.answered"))["sessionKey"] == KEY
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert (row["state"], "waiting" in row) == ("running", False)
        # After it was answered nothing waits there, whatever the program has said before.
        await report(owner, tmp_path, "Notification")
        assert (await owner.call("sessions_list"))["sessions"][0]["state"] == "waiting"
        asking = await send_ask(hook, tmp_path, "again")
        question = await wait_for_question(owner)
        await owner.call("questions.answer", id=question["id"], optionId="allow")
        await hook.answer(asking)
        assert (await owner.call("sessions_list"))["sessions"][0]["state"] == "running"


async def test_a_hook_that_ends_withdraws_its_question(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        async with parts.connect() as hook:
            await send_ask(hook, tmp_path)
            question = await wait_for_question(owner)
        with trio.fail_after(PATIENCE_S):
            while (await owner.call("questions.list", open=True))["questions"]:  # noqa: ASYNC110
                await trio.sleep(0.005)
        [closed] = (await owner.call("questions.list"))["questions"]
        assert (closed["id"], closed["status"]) == (question["id"], "withdrawn")
        error = await owner.failure("questions.answer", id=question["id"], optionId="allow")
        assert error["data"]["answer"]["outcome"] == "withdrawn"


async def test_what_was_decided_in_the_terminal_is_withdrawn_when_the_program_goes_on(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        for event in ("Stop", "UserPromptSubmit", "SessionStart", "SessionEnd"):
            asking = await send_ask(hook, tmp_path)
            await wait_for_question(owner)
            # Neither of these says that it was decided: several tools may wait at a time.
            await report(owner, tmp_path, "Notification")
            await report(owner, tmp_path, "PermissionRequest")
            await wait_for_question(owner)
            await report(owner, tmp_path, event)
            answer = (await hook.answer(asking))["result"]
            assert (answer["outcome"], "optionId" in answer) == ("withdrawn", False), event


async def test_the_result_of_the_call_in_the_transcript_withdraws_its_question(tmp_path: Path) -> None:
    path = claude_file(tmp_path)
    given = {"command": "ls", "description": "look"}

    def write(number: int, result: bool) -> None:
        """A call of the tool, or its result, as the program writes it."""
        block: dict[str, object] = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": given}
        if result:
            block = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "a"}
        line = json.loads(claude_line(f"{number}{result}", "user" if result else "assistant"))
        line["message"] |= {"content": [block]}
        with path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    write(1, False)
    write(1, True)
    use = {"toolName": "Bash", "toolInput": {**given, "timeout": 10}}
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        other = await send_ask(hook, tmp_path, "Bash: rm", toolName="Bash", toolInput={"command": "rm"})
        asking = await send_ask(hook, tmp_path, **use)
        with trio.fail_after(PATIENCE_S):
            while len((await owner.call("questions.list", open=True))["questions"]) < 2:  # noqa: ASYNC110
                await trio.sleep(0.005)
        write(2, False)
        write(2, True)
        answer = (await hook.answer(asking))["result"]
        assert answer["outcome"] == "withdrawn"
        questions = {one["title"]: one for one in (await owner.call("questions.list"))["questions"]}
        assert {title: one["status"] for title, one in questions.items()} == {
            "Bash: ls": "withdrawn",
            "Bash: rm": "open",
        }
        assert questions["Bash: ls"]["answer"]["reason"] == "it was decided in the terminal"
        await owner.call("questions.answer", id=questions["Bash: rm"]["id"], optionId="deny")
        assert (await hook.answer(other))["result"]["optionId"] == "deny"


async def test_two_permissions_at_once_are_answered_each_for_itself(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner), parts.connect() as one, parts.connect() as other:
        first = await send_ask(one, tmp_path, "first")
        await wait_for_question(owner)
        second = await send_ask(other, tmp_path, "second")
        with trio.fail_after(PATIENCE_S):
            while len(open_ones := (await owner.call("questions.list", open=True))["questions"]) < 2:  # noqa: ASYNC110
                await trio.sleep(0.005)
        by_title = {question["title"]: question["id"] for question in open_ones}
        await owner.call("questions.answer", id=by_title["second"], optionId="deny")
        await owner.call("questions.answer", id=by_title["first"], optionId="allow")
        assert (await one.answer(first))["result"]["optionId"] == "allow"
        assert (await other.answer(second))["result"]["optionId"] == "deny"


async def test_a_daemon_that_ended_meanwhile_has_granted_nothing(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        await send_ask(hook, tmp_path)
        question = await wait_for_question(owner)
        [path] = (tmp_path / "store").rglob("agents/main/sessions/*.jsonl")
        with trio.fail_after(PATIENCE_S):
            while b"sessiond/question" not in (kept := path.read_bytes()):  # noqa: ASYNC110 - listed before it is there
                await trio.sleep(0.005)
    # As a kill leaves it: the question without its end.
    path.write_bytes(kept)
    async with daemon(tmp_path) as (_, owner):
        [closed] = (await owner.call("questions.list"))["questions"]
        assert (closed["id"], closed["status"], closed["sessionKey"]) == (question["id"], "withdrawn", KEY)
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert row["state"] != "waiting"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert (records[0]["attends"], records[0]["type"]) == (KEY, "session")


async def test_who_may_see_the_session_and_answer_does(tmp_path: Path) -> None:
    claude_file(tmp_path)
    blind = Caller(kind="token", scopes=frozenset({"list", "answer"}), session_key="agent:main:main", sandboxed=True)
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        asking = await send_ask(hook, tmp_path)
        question = await wait_for_question(owner)
        async with parts.connect(blind) as other:
            assert (await other.call("questions.list"))["questions"] == []
            error = await other.failure("questions.answer", id=question["id"], optionId="allow")
            assert error["data"]["type"] == "not_found"
        async with parts.connect(READER) as other:
            error = await other.failure("questions.answer", id=question["id"], optionId="allow")
            assert error["data"]["type"] == "forbidden"
        async with parts.connect(ANSWERER) as other:
            await other.call("questions.answer", id=question["id"], optionId="allow")
        assert (await hook.answer(asking))["result"]["optionId"] == "allow"


async def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    claude_file(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        good = {**named(tmp_path, "PermissionRequest"), "title": "x", "options": OPTIONS}
        for wrong in ({"transcriptPath": "/etc/passwd"}, {"title": "\u202e"}, {"options": []}, {"sessionId": "x"}):
            error = await owner.failure("hooks.ask", **{**good, **wrong})
            assert error["data"]["type"] == "invalid_params", wrong
        assert not parts.services.store.catalog.by_id


async def test_a_question_that_nobody_answers_expires(tmp_path: Path) -> None:
    claude_file(tmp_path)
    shift = Shift()
    async with daemon(tmp_path, clock=shift.clock) as (_, owner):
        params = {**named(tmp_path, "PermissionRequest"), "title": "x" * 5000, "detail": "y" * 100_000}
        answer = await owner.call("hooks.ask", **params, options=OPTIONS, timeoutSeconds=1)
        assert answer["outcome"] == "expired"
        [closed] = (await owner.call("questions.list"))["questions"]
        assert (len(closed["title"]), closed["status"]) == (200, "expired")
