"""`hooks.ask`: a permission in a terminal is a question of that session; whoever waits gets one answer or none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from support.foreign_daemon import READER, daemon
from support.hooked import KEY, OPTIONS, Shift, claude_file, claude_line, claude_path, named, report, send_ask
from support.in_process import Connection
from support.patience import PATIENCE_S
from support.questions import wait_for_question

from sessiond.clock import iso_ms
from sessiond.model.caller import Caller
from sessiond.questions.terminal_decisions import ExpectedDecision, TerminalDecisions, ToolUse

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


class Calls:
    """Calls of a tool and their results, as the program writes them into its transcript."""

    given = {"command": "ls", "description": "look"}
    use = {"toolName": "Bash", "toolInput": {**given, "timeout": 10}}

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, ident: str) -> None:
        self._write(ident, "assistant", {"type": "tool_use", "id": ident, "name": "Bash", "input": self.given})

    def end(self, ident: str, *, after_s: float = 0) -> None:
        block = {"type": "tool_result", "tool_use_id": ident, "content": "a"}
        self._write(ident, "user", block, after_s=after_s)

    def _write(self, ident: str, role: str, block: dict[str, Any], *, after_s: float = 0) -> None:
        line = json.loads(claude_line(f"{ident}{role}", role, iso_ms(int((time.time() + after_s) * 1000))))
        line["message"] |= {"content": [block]}
        with self._path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


async def wait_for_open(owner: Connection, count: int) -> list[dict[str, Any]]:
    """The open questions, once there are so many."""
    with trio.fail_after(PATIENCE_S):
        while len(found := (await owner.call("questions.list", open=True))["questions"]) != count:  # noqa: ASYNC110
            await trio.sleep(0.005)
    return cast("list[dict[str, Any]]", found)


async def wait_for_call(owner: Connection, ident: str) -> None:
    """Return when the daemon has read the call."""
    with trio.fail_after(PATIENCE_S):
        asked = {"sessionKey": KEY, "includeTools": True}
        while f'"{ident}"' not in json.dumps(await owner.call("sessions_history", **asked)):  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_the_result_of_the_call_in_the_transcript_withdraws_its_question(tmp_path: Path) -> None:
    calls = Calls(claude_file(tmp_path))
    calls.begin("t1")
    calls.end("t1")
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        other = await send_ask(hook, tmp_path, "Bash: rm", toolName="Bash", toolInput={"command": "rm"})
        asking = await send_ask(hook, tmp_path, **calls.use)
        await wait_for_open(owner, 2)
        # The result of an equal call from before may be read late.
        calls.begin("t2")
        calls.end("t2", after_s=-3600)
        calls.begin("t3")
        await wait_for_call(owner, "t3")
        await wait_for_open(owner, 2)
        calls.end("t3")
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


async def test_what_was_decided_before_anybody_looked_is_withdrawn(tmp_path: Path) -> None:
    calls = Calls(claude_file(tmp_path))
    calls.begin("t1")
    calls.end("t1", after_s=3600)  # after the hook was called, that is
    async with daemon(tmp_path) as (parts, owner), parts.connect() as hook:
        assert (await hook.answer(await send_ask(hook, tmp_path, **calls.use)))["result"]["outcome"] == "withdrawn"
        # Nor does what was left without a result in an earlier turn stand for a call of this one.
        calls.begin("left")
        with claude_path(tmp_path).open("ab") as file:
            file.write(claude_line("go on", "user", iso_ms(int(time.time() * 1000))))
        calls.begin("t2")
        await wait_for_call(owner, "t2")
        asking = await send_ask(hook, tmp_path, **calls.use)
        await wait_for_open(owner, 1)
        calls.end("t2", after_s=1)
        assert (await hook.answer(asking))["result"]["outcome"] == "withdrawn"


@pytest.mark.parametrize("named_calls", [False, True])
async def test_of_equal_calls_at_once_the_one_that_was_decided_is_withdrawn(tmp_path: Path, named_calls: bool) -> None:
    calls = Calls(claude_file(tmp_path))
    calls.begin("t1")
    calls.begin("t2")
    order = ("t2", "t1") if named_calls else ("t1", "t2")
    async with daemon(tmp_path) as (parts, owner), parts.connect() as one, parts.connect() as other:
        asking = {}
        for count, (hook, ident) in enumerate(zip((one, other), order, strict=True), 1):
            use = {**calls.use, "toolUseId": ident} if named_calls else calls.use
            asking[ident] = (hook, await send_ask(hook, tmp_path, **use))
            await wait_for_open(owner, count)
        for left, ident in ((1, "t2"), (0, "t1")):
            calls.end(ident, after_s=1)
            hook, request = asking[ident]
            assert (await hook.answer(request))["result"]["outcome"] == "withdrawn"
            await wait_for_open(owner, left)


async def test_questions_that_are_written_together_have_their_calls_in_their_order(tmp_path: Path) -> None:
    calls = Calls(claude_file(tmp_path))
    async with daemon(tmp_path) as (parts, owner), parts.connect() as one, parts.connect() as other:
        hooks = {"Bash: one": one, "Bash: other": other}
        for turn in range(8):
            both = [f"first{turn}", f"second{turn}"]
            for ident in both:
                calls.begin(ident)
            await wait_for_call(owner, both[1])
            asking = {title: await send_ask(hook, tmp_path, title, **calls.use) for title, hook in hooks.items()}
            in_order = [question["title"] for question in await wait_for_open(owner, 2)]
            for ident, title, left in zip(both, in_order, (1, 0), strict=True):
                calls.end(ident, after_s=1)
                assert title not in [question["title"] for question in await wait_for_open(owner, left)], turn
            for title, hook in hooks.items():
                await hook.answer(asking[title])


async def decided_first(
    decisions: TerminalDecisions, uses: list[ToolUse], calls: Calls, ident: str, *, started: list[int]
) -> int:
    """Which of the questions about these calls, asked in this order, is decided first when the call has a result. Their
    waits are started in the order of `started`.
    """
    expected = [decisions.expect(KEY, use, 0) for use in uses]
    decided: list[int] = []

    async def wait(number: int) -> None:
        await decisions.wait(expected[number])
        decided.append(number)
        nursery.cancel_scope.cancel()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for number in started:
                nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked(0.01)
            calls.end(ident, after_s=1)
    for one in expected:
        decisions.forget(one)
    assert decisions._expected == {}
    return decided[0]


async def test_equal_calls_belong_to_questions_in_the_order_in_which_these_were_asked(tmp_path: Path) -> None:
    calls = Calls(claude_file(tmp_path))
    names = iter(f"t{number}" for number in range(99))
    guessed = ToolUse("Bash", calls.given)
    async with daemon(tmp_path) as (parts, owner):
        decisions = TerminalDecisions(parts.services.store, parts.services.bus)
        for decided, expected in ((0, 0), (1, 1)):
            both = [next(names), next(names)]
            for ident in both:
                calls.begin(ident)
            await wait_for_call(owner, both[1])
            assert await decided_first(decisions, [guessed] * 2, calls, both[decided], started=[1, 0]) == expected
            calls.end(both[1 - decided], after_s=1)
        # A call that is named is nobody else's, whoever looked first.
        for place, order in ((0, [0, 1]), (0, [1, 0]), (1, [0, 1]), (1, [1, 0])):
            both = [next(names), next(names)]
            for ident in both:
                calls.begin(ident)
            await wait_for_call(owner, both[1])
            uses = [guessed, guessed]
            uses[place] = ToolUse("Bash", calls.given, both[0])
            assert await decided_first(decisions, uses, calls, both[0], started=order) == place
            calls.end(both[1], after_s=1)


async def test_a_call_that_is_named_late_is_taken_from_who_only_resembles_it(tmp_path: Path) -> None:
    calls = Calls(claude_file(tmp_path))
    calls.begin("t1")
    calls.begin("t2")
    guessed, known = ToolUse("Bash", calls.given), ToolUse("Bash", calls.given, "t1")
    decided: list[str] = []
    async with daemon(tmp_path) as (parts, owner):
        await wait_for_call(owner, "t2")
        decisions = TerminalDecisions(parts.services.store, parts.services.bus)

        async def wait(name: str, expected: ExpectedDecision) -> None:
            await decisions.wait(expected)
            decided.append(name)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, "guessed", decisions.expect(KEY, guessed, 0))
                await trio.testing.wait_all_tasks_blocked(0.01)
                nursery.start_soon(wait, "known", decisions.expect(KEY, known, 0))
                await trio.testing.wait_all_tasks_blocked(0.01)
                for count, ident in enumerate(("t1", "t2"), 1):
                    calls.end(ident, after_s=1)
                    while len(decided) < count:  # noqa: ASYNC110
                        await trio.sleep(0.005)
    assert decided == ["known", "guessed"]


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
