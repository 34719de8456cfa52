"""`sessions.create` over every transport."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


def test_a_session_created_without_a_key_gets_one(call: Call) -> None:
    got = call("sessions.create")
    assert got["key"].startswith("agent:main:dashboard:")
    assert got["created"] is True


def test_creating_an_existing_key_is_not_an_error(call: Call, fresh: str, shared: Daemon) -> None:
    known = shared.call("sessions.resolve", key=fresh)
    assert call("sessions.create", key=fresh) == {**known, "created": False}


def test_label_model_and_parent_are_shown_in_the_row(call: Call, shared: Daemon, fresh: str) -> None:
    label = str(uuid4())
    got = call("sessions.create", label=label, model="m-1", parentSessionKey=fresh)
    [row] = shared.call("sessions_list", label=label)["sessions"]
    assert (row["key"], row["model"], row["spawnedBy"]) == (got["key"], "m-1", fresh)
    [parent] = shared.call("sessions_list", search=fresh)["sessions"]
    assert parent["childSessions"] == [got["key"]]


def test_a_first_message_runs_the_agent(call: Call, shared: Daemon) -> None:
    got = call("sessions.create", message="first words")
    assert shared.call("agent.wait", runId=got["runId"])["reply"] == "first words"


def test_a_label_in_use_is_a_conflict(call: Call, shared: Daemon) -> None:
    label = str(uuid4())
    shared.call("sessions.create", label=label)
    with pytest.raises(CallFailed) as failed:
        call("sessions.create", label=label)
    assert failed.value.error["code"] == -32004


@check_each(
    ("params", "code"),
    [
        ({"key": "agent:nobody:x"}, -32002),
        ({"agentId": "nobody"}, -32002),
        ({"key": "agent:main:x", "agentId": "other"}, -32602),
        ({"label": "x" * 513}, -32602),
        ({"label": " "}, -32602),
        ({"label": "a\nb"}, -32602),
    ],
)
def test_invalid_params_are_refused(call: Call, params: dict[str, str], code: int) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sessions.create", **params)
    assert failed.value.error["code"] == code


def test_simultaneous_calls_create_one_session(shared: Daemon) -> None:
    key = f"agent:main:test:{uuid4()}"
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: shared.call("sessions.create", key=key), range(16)))
    assert len({one["sessionId"] for one in got}) == 1
    assert sum(one["created"] for one in got) == 1


def test_of_simultaneous_calls_for_a_label_one_gets_it(shared: Daemon) -> None:
    label = str(uuid4())
    with ThreadPoolExecutor(8) as pool:

        def create(_: int) -> bool:
            with shared.connect() as wire:
                return "result" in wire.ask("sessions.create", label=label)

        assert sum(pool.map(create, range(16))) == 1
