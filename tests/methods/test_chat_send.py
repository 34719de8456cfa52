"""`chat.send`: messages, the owner's commands, who can create a session, what is delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, adapter, agent, attached_agents_config, until
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each

GROUP = "agent:main:telegram:group:-100"


class TestOverEveryTransport:
    def test_a_message_is_accepted_and_runs(self, call: Call, shared: Daemon, fresh: str) -> None:
        sent = call("chat.send", sessionKey=fresh, message="what?")
        assert sent == {"runId": sent["runId"], "status": "accepted", "cursor": sent["cursor"]}
        assert shared.call("agent.wait", runId=sent["runId"])["reply"] == "what?"

    @pytest.mark.parametrize("name", ["sessions.send", "agent"])
    def test_its_aliases_do_the_same(self, call: Call, fresh: str, name: str) -> None:
        assert call(name, sessionKey=fresh, message="x")["status"] == "accepted"

    def test_the_owner_can_create_any_valid_key_of_a_configured_agent(self, call: Call, shared: Daemon) -> None:
        key = f"agent:other:new:{uuid4()}"
        call("chat.send", sessionKey=key, message="x")
        assert shared.call("sessions.resolve", key=key)["key"] == key

    @check_each(
        ("params", "code"),
        [
            ({"sessionKey": "agent:nobody:main", "message": "x"}, -32002),
            ({"sessionKey": "agent:!:main", "message": "x"}, -32602),
            ({"sessionKey": "any word", "message": "x"}, -32602),
            ({"sessionKey": "word", "message": "x"}, -32002),
            ({"sessionKey": "main", "message": ""}, -32602),
            ({"sessionKey": "main", "message": "a\0b"}, -32602),
            ({"sessionKey": "main", "message": "x", "timeoutSeconds": -1}, -32602),
            ({"sessionKey": "main", "message": "x", "thinking": "hard"}, -32602),
            ({"sessionKey": "main", "message": "x", "idempotencyKey": "k" * 257}, -32602),
            ({"sessionKey": "main", "message": "x", "provenance": {}}, -32602),
        ],
    )
    def test_invalid_params_are_refused(self, call: Call, params: dict[str, Any], code: int) -> None:
        if params["sessionKey"] == "any word":
            params, code = {**params, "sessionKey": "any\nword"}, -32602
        with pytest.raises(CallFailed) as failed:
            call("chat.send", **params)
        assert failed.value.error["code"] == code

    def test_a_token_cannot_create_a_session(self, call: Call, shared: Daemon, fresh: str) -> None:
        token = shared.call("tokens.mint", scopes=["send"], sessionKey=fresh)["token"]
        with pytest.raises(CallFailed) as failed:
            call("chat.send", by=token, sessionKey=f"agent:main:new:{uuid4()}", message="x")
        assert failed.value.error["code"] == -32002

    def test_the_same_idempotency_key_and_params_give_the_same_run(self, call: Call, fresh: str) -> None:
        first = call("chat.send", sessionKey=fresh, message="x", idempotencyKey="k", timeoutSeconds=50)
        again = call("chat.send", sessionKey=fresh, message="x", idempotencyKey="k")
        assert again["runId"] == first["runId"]
        with pytest.raises(CallFailed) as failed:
            call("chat.send", sessionKey=fresh, message="x", idempotencyKey="k", thinking="low")
        assert failed.value.error["code"] == -32004

    def test_send_off_denies_messages_and_send_on_allows_them(self, call: Call, shared: Daemon, fresh: str) -> None:
        def say(text: str) -> Any:
            return call("chat.send", sessionKey=fresh, message=text)

        off = {"status": "handled", "command": "/send", "reply": "Send policy set to off."}
        assert say("  /SEND off ") == off
        assert shared.call("sessions_list", limit=200, search=fresh)["sessions"][0]["sendPolicy"] == "deny"
        for method in ("chat.send", "sessions_send"):
            with pytest.raises(CallFailed) as failed:
                call(method, sessionKey=fresh, message="x")
            assert failed.value.error["data"]["code"] == "send_denied"
        # Commands and aborts still work.
        assert say("/stop")["status"] == "handled"
        assert call("chat.abort", sessionKey=fresh) == {"aborted": False, "runIds": []}
        assert say("/send on")["reply"] == "Send policy set to on."
        assert say("x")["status"] == "accepted"
        assert say("/send inherit")["reply"] == "Send policy set to inherit."
        assert "sendPolicy" not in shared.call("sessions_list", limit=200, search=fresh)["sessions"][0]
        assert say("/send")["reply"] == say("/send maybe")["reply"] == "Usage: /send on|off|inherit"

    def test_a_command_within_a_sentence_is_a_message(self, call: Call, fresh: str) -> None:
        for text in ("please /stop", "/stop it", "/send off now", "/unknown"):
            assert call("chat.send", sessionKey=fresh, message=text)["status"] == "accepted"

    def test_a_command_sent_by_a_token_is_a_message(self, call: Call, shared: Daemon, fresh: str) -> None:
        token = shared.call("tokens.mint", scopes=["send"], sessionKey=fresh)["token"]
        assert call("chat.send", by=token, sessionKey=fresh, message="/send off")["status"] == "accepted"
        assert "sendPolicy" not in shared.call("sessions_list", limit=200, search=fresh)["sessions"][0]

    def test_the_reset_command_begins_a_new_session(self, call: Call, shared: Daemon, fresh: str) -> None:
        before = shared.call("sessions.resolve", key=fresh)["sessionId"]
        got = call("chat.send", sessionKey=fresh, message="/reset")
        assert got == {
            "status": "handled",
            "command": "/reset",
            "reply": "A new conversation begins; the old one is in the archive.",
        }
        assert shared.call("sessions.resolve", key=fresh)["sessionId"] != before
        assert shared.call("sessions_history", sessionKey=fresh)["messages"] == []

    def test_commands_create_no_session_except_setting_a_policy(self, call: Call, shared: Daemon) -> None:
        key = f"agent:main:new:{uuid4()}"
        assert call("chat.send", sessionKey=key, message="/stop")["reply"] == "Nothing is running here."
        assert call("chat.send", sessionKey=key, message="/reset")["reply"] == "There is no conversation to reset."
        assert shared.failure("sessions.resolve", key=key)["code"] == -32002
        call("chat.send", sessionKey=key, message="/send off")
        assert shared.call("sessions.resolve", key=key)["key"] == key
        with pytest.raises(CallFailed) as failed:
            call("chat.send", sessionKey="agent:nobody:main", message="/stop")
        assert failed.value.error["code"] == -32002


async def never_answer(_: Program, __: dict[str, Any]) -> Any:
    await trio.sleep_forever()


@pytest.mark.parametrize(("runs", "reply"), [(1, "Stopped 1 run."), (3, "Stopped 3 runs.")])
async def test_stop_ends_running_and_queued_runs_whatever_the_send_policy(tmp_path: Path, runs: int, reply: str):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", never_answer) as alice,
        there.connect() as owner,
    ):
        key = "agent:alice:main"
        ids = [(await owner.call("chat.send", sessionKey=key, message=str(n)))["runId"] for n in range(runs)]
        await alice.got.wait()
        await owner.call("chat.send", sessionKey=key, message="/send off")
        got = await owner.call("chat.send", sessionKey=key, message="/stop")
        assert got == {"status": "handled", "command": "/stop", "reply": reply}
        ended = [await owner.call("agent.wait", runId=run_id, timeoutMs=0) for run_id in ids]
        assert [one["status"] for one in ended] == ["aborted"] * runs
        await until(lambda: alice.called_off)


async def test_the_time_limit_of_a_run_is_the_parameter_or_else_the_configured_one(tmp_path: Path):
    config = attached_agents_config("alice", more="[agents.defaults]\nrunTimeoutSeconds = 0.2\n")
    async with (
        in_process_daemon(tmp_path, config) as there,
        agent(there, "alice", never_answer) as alice,
        there.connect() as owner,
    ):
        key = "agent:alice:main"
        for params, error in (({}, "the run met its limit of 0.2 s"), ({"timeoutSeconds": 0.1}, "0.1 s")):
            run_id = (await owner.call("chat.send", sessionKey=key, message="x", **params))["runId"]
            ended = await owner.call("agent.wait", runId=run_id)
            assert ended["status"] == "timeout" and ended["error"].endswith(error)
        deadline = alice.turns[0]["deadline"]
        assert isinstance(deadline, int)
        sent = await owner.call("chat.send", sessionKey=key, message="no limit", timeoutSeconds=0)
        await until(lambda: len(alice.turns) == 3)
        assert "deadline" not in alice.turns[2]
        await owner.call("chat.abort", sessionKey=key, runId=sent["runId"])


async def test_a_reply_is_delivered_only_when_requested(tmp_path: Path):
    async with in_process_daemon(tmp_path) as there, adapter(there, "telegram") as telegram, there.connect() as owner:
        await owner.say(GROUP, "not this one")
        for message, params in (("this one", {"deliver": True}), ("nor this", {"deliver": False})):
            sent = await owner.call("chat.send", sessionKey=GROUP, message=message, **params)
            await owner.call("agent.wait", runId=sent["runId"])
        await until(lambda: telegram.asked)
        assert [params["text"] for _, params in telegram.asked] == ["this one"]
        assert telegram.asked[0][1]["to"] == "-100"


async def test_nothing_is_delivered_if_sending_is_denied_meanwhile(tmp_path: Path):
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        sent = await owner.call("chat.send", sessionKey=GROUP, message="hello", deliver=True)
        await owner.call("agent.wait", runId=sent["runId"])
        outbox = tmp_path / "store" / "outbox"
        await until(lambda: list(outbox.glob("*.json")))
        await owner.call("chat.send", sessionKey=GROUP, message="/send off")
        async with adapter(there, "telegram") as telegram:
            await until(lambda: not list(outbox.glob("*.json")))
            assert telegram.asked == []


PNG = "iVBORw0KGgo="


class TestAttachments:
    FILES = [
        {"name": "note.txt", "content": "hello"},
        {"name": "dot.png", "content": PNG, "encoding": "base64", "mimeType": "image/png"},
    ]

    async def test_files_are_written_to_the_workspace_and_images_are_put_into_the_message(self, tmp_path: Path):
        async with (
            in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
            agent(there, "alice", _look) as alice,
            there.connect() as owner,
        ):
            key = "agent:alice:main"
            asked = {"sessionKey": key, "message": "look", "attachments": self.FILES, "idempotencyKey": "k"}
            sent = await owner.call("chat.send", **asked)
            assert (await owner.call("agent.wait", runId=sent["runId"]))["reply"] == "seen"
            [turn] = alice.turns
            receipt = turn["attachments"]
            assert (receipt["count"], [file["name"] for file in receipt["files"]]) == (2, ["note.txt", "dot.png"])
            folder = tmp_path / "store/agents/alice/workspace" / receipt["relDir"]
            assert (folder / "note.txt").read_text() == "hello"
            assert "They came with the message below." in turn["context"]
            page = await owner.call("sessions_history", sessionKey=key)
            assert page["messages"][0]["content"] == [
                {"type": "text", "text": "look"},
                {"type": "image", "data": PNG, "mimeType": "image/png"},
            ]
            # Repeating the request gives the same run and writes no files.
            assert (await owner.call("chat.send", **asked))["runId"] == sent["runId"]
            assert len(list(folder.parent.iterdir())) == 1

    @check_each(
        ("files", "code"),
        [
            ([{"name": "../x", "content": ""}], "attachments_invalid_name"),
            ([{"name": "x", "content": "!", "encoding": "base64"}], "attachments_invalid_base64"),
            ([{"name": "x", "content": ""}, {"name": "X", "content": ""}], "attachments_duplicate_name"),
        ],
    )
    async def test_attachment_rules_are_those_of_a_spawn_and_a_refusal_writes_nothing(
        self, tmp_path: Path, files: list[dict[str, Any]], code: str
    ):
        async with in_process_daemon(tmp_path) as there, there.connect() as owner:
            error = await owner.failure("chat.send", sessionKey="main", message="x", attachments=files)
            assert error["data"]["code"] == code
            assert (await owner.call("sessions_history", sessionKey="main"))["messages"] == []
            assert not (tmp_path / "store/agents/main/workspace/.openclaw").exists()

    async def test_the_same_request_twice_at_once_leaves_one_set_of_files(self, tmp_path: Path):
        async with in_process_daemon(tmp_path) as there, there.connect() as owner:
            await owner.say("main", "hello")
            asked = {"sessionKey": "main", "message": "x", "attachments": self.FILES, "idempotencyKey": "k"}
            for _ in range(2):
                await owner.send("chat.send", **asked)
            answers = [(await owner.receive())["result"]["runId"] for _ in range(2)]
            assert answers[0] == answers[1]
            folder = tmp_path / "store/agents/main/workspace/.openclaw/attachments"
            await until(lambda: len(list(folder.iterdir())) == 1)


async def _look(_: Program, __: dict[str, Any]) -> Any:
    return {"reply": "seen"}
