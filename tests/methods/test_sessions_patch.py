from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.rows import check_each

from sessiond.model.caller import Caller

KEY = "agent:main:work"
ALL = {
    "label": "the work",
    "displayName": "Work",
    "thinkingLevel": "high",
    "verboseLevel": "on",
    "model": "big",
    "sendPolicy": "deny",
    "notify": True,
    "contextTokens": 200_000,
    "deliveryContext": {"channel": "telegram", "to": "42", "accountId": "a", "threadId": 7},
}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    always = {"key", "kind", "channel", "updatedAt", "createdAt", "sessionId", "messageCount", "transcriptPath"}
    always |= {"source", "title", "cwd", "state"}
    return {name: value for name, value in row.items() if name not in always}


def _records(daemon: InProcessDaemon, key: str = KEY) -> list[dict[str, Any]]:
    store = daemon.services.store
    return [json.loads(line) for line in (store.path / store.catalog.by_key[key].path).read_text().splitlines()]


async def _refused(client: Connection, **params: Any) -> tuple[int, str | None]:
    error = await client.failure("sessions.patch", key=KEY, **params)
    return error["code"], error["data"].get("field") or error["data"].get("code")


async def test_all_settings_are_set_in_one_record_and_shown_in_the_row(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        spelt = {"label": "  the work ", "thinkingLevel": "HIGH", "verboseLevel": " On", "model": " big "}
        patched = await client.call("sessions.patch", key="AGENT:main:Work ", **{**ALL, **spelt})
        assert patched["key"] == patched["row"]["key"] == KEY
        assert _shown(patched["row"]) == ALL
        header, record = _records(daemon)
        assert (header["type"], record["customType"]) == ("session", "sessiond/entry")
        assert record["data"] == {**ALL, "modelOverride": "big", "modelProvider": None}


async def test_null_clears_a_setting_and_an_omitted_one_stays(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        await client.call("sessions.patch", key=KEY, **ALL)
        patched = await client.call(
            "sessions.patch", key=KEY, label=None, model=None, deliveryContext={"to": "43", "threadId": None}
        )
        left = {name: value for name, value in ALL.items() if name not in ("label", "model")}
        assert _shown(patched["row"]) == left | {
            "deliveryContext": {"channel": "telegram", "to": "43", "accountId": "a"}
        }
        cleared = await client.call("sessions.patch", key=KEY, **dict.fromkeys(ALL))
        assert _shown(cleared["row"]) == {}


async def test_a_patch_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        assert _shown((await client.call("sessions.patch", key=KEY))["row"]) == {}
        assert len(_records(daemon)) == 1


@check_each(
    ("params", "field"),
    [
        ({"label": " "}, "$.label"),
        ({"label": "x" * 513}, "$.label"),
        ({"label": "a\nb"}, "$.label"),
        ({"displayName": ""}, "$.displayName"),
        ({"displayName": "a\u202eb"}, "$.displayName"),
        ({"thinkingLevel": "enormous"}, "$.thinkingLevel"),
        ({"verboseLevel": "loud"}, "$.verboseLevel"),
        ({"sendPolicy": "maybe"}, "$.sendPolicy"),
        ({"model": "  "}, "$.model"),
        ({"deliveryContext": {"to": "x" * 513}}, "$.deliveryContext.to"),
        ({"deliveryContext": {"channel": ""}}, "$.deliveryContext.channel"),
    ],
)
async def test_an_invalid_value_is_refused_and_changes_nothing(
    tmp_path: Path, params: dict[str, Any], field: str
) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        assert await _refused(client, **{"sendPolicy": "deny", **params}) == (-32602, field)
        assert len(_records(daemon)) == 1


@check_each(
    "params",
    [
        {"contextTokens": 0},
        {"contextTokens": 2**53 + 1},
        {"contextTokens": "many"},
        {"deliveryContext": {"planet": "x"}},
        {"deliveryContext": "x"},
        {"color": "red"},
    ],
)
async def test_a_value_of_the_wrong_type_is_refused_by_name(tmp_path: Path, params: dict[str, Any]) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        error = await client.failure("sessions.patch", key=KEY, **params)
        assert error["code"] == -32602
        assert next(iter(params)) in error["message"]


async def test_the_longest_label_and_the_largest_context_are_accepted(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        wanted = {"label": "x" * 512, "displayName": "é" * 512, "contextTokens": 2**53}
        assert _shown((await client.call("sessions.patch", key=KEY, **wanted))["row"]) == wanted
        assert _shown((await client.call("sessions.patch", key=KEY, contextTokens=1))["row"]) == wanted | {
            "contextTokens": 1
        }


async def test_a_model_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, '[models]\nallow = ["big"]') as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        error = await client.failure("sessions.patch", key=KEY, model="small")
        assert (error["code"], error["data"]["code"]) == (-32602, "model_unknown")
        assert (await client.call("sessions.patch", key=KEY, model="big"))["row"]["model"] == "big"


async def test_the_name_of_a_model_has_a_limit(tmp_path: Path) -> None:
    """What else is in the same record would be lost with it where a reader refused that."""
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY, model="m" * 512)
        for error in (
            await client.failure("sessions.patch", key=KEY, model="m" * 513),
            await client.failure("sessions.create", key=f"{KEY}2", model="m" * 513),
            await client.failure("sessions_spawn", task="t", model="m" * 513),
        ):
            assert (error["code"], error["data"]["field"]) == (-32602, "$.model"), error
        assert (await client.call("sessions.patch", key=KEY, model="n" * 512))["row"]["model"] == "n" * 512


async def test_a_label_belongs_to_one_session_of_an_agent_even_if_two_take_it_at_once(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client, daemon.connect() as other:
        second = "agent:main:second"
        await client.call("sessions.create", key=KEY)
        await client.call("sessions.create", key=second)
        answers: list[dict[str, Any]] = []

        async def label(connection: Connection, key: str) -> None:
            answers.append(await connection.answer(await connection.send("sessions.patch", key=key, label="home")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(label, client, KEY)
            nursery.start_soon(label, other, second)
        codes = sorted(answer["error"]["code"] if "error" in answer else 0 for answer in answers)
        assert codes == [-32004, 0]
        winner = daemon.services.store.catalog.keys_with_label("main", "home")
        assert len(winner) == 1
        # Its own label again is no conflict.
        await client.call("sessions.patch", key=winner[0], label="home")


async def test_a_label_stays_taken_while_it_is_written_also_where_the_wait_for_it_is_cancelled(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        second = "agent:main:second"
        await client.call("sessions.create", key=KEY)
        await client.call("sessions.create", key=second)
        asked = [
            ("first", "sessions.patch", {"key": KEY, "label": "home"}),
            ("cancel", "$/cancelRequest", {"id": "first"}),
            ("second", "sessions.patch", {"key": second, "label": "home"}),
        ]
        # In one write, so that all three are taken before the first is on disk.
        parts = [{"jsonrpc": "2.0", "id": name, "method": method, "params": params} for name, method, params in asked]
        await client.write(b"".join(msgspec.json.encode(part) + b"\n" for part in parts))
        answers = {}
        while len(answers) < 3:
            answer = await client.receive()
            answers[answer["id"]] = answer
        assert answers["first"]["error"]["code"] == -32800
        assert answers["second"]["error"]["data"]["code"] == "label_in_use"
        await client.call("sessions.patch", key=KEY, displayName="behind it")
        assert daemon.services.store.catalog.keys_with_label("main", "home") == [KEY]
        assert daemon.services.store.catalog.claims == {}


async def test_missing_and_invisible_sessions_get_the_same_answer_and_admin_is_needed(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        child = Caller(kind="token", scopes=frozenset(["admin"]), session_key="agent:main:child")
        async with daemon.connect(child) as agent:
            error = await agent.failure("sessions.patch", key=KEY, label="x")
            gone = await agent.failure("sessions.patch", key="agent:main:none", label="x")
            assert msgspec.json.encode(error).replace(b"work", b"none") == msgspec.json.encode(gone)
            assert error["code"] == -32002
        sender = Caller(kind="token", scopes=frozenset(["list", "read", "send", "spawn"]), session_key=KEY)
        async with daemon.connect(sender) as agent:
            assert (await agent.failure("sessions.patch", key="current", label="x"))["code"] == -32003


async def test_an_archived_session_cannot_be_patched(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        made = await client.call("sessions.create", key=KEY)
        await client.call("sessions.delete", key=KEY)
        for name in (KEY, made["sessionId"]):
            assert (await client.failure("sessions.patch", key=name, label="x"))["code"] == -32002


async def test_followers_hear_of_a_patch(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client, daemon.connect() as follower:
        await client.call("sessions.create", key=KEY)
        await follower.call("sessions.subscribe")
        await client.call("sessions.patch", key=KEY, label="home")
        event = await follower.event("sessions.changed")
        assert (event["sessionKey"], event["phase"], event["row"]["label"]) == (KEY, "patch", "home")
