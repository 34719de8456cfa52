"""A hidden session cannot be told from a missing one: same answer, same functions called, and its label is free."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.rows import check_each

import sessiond
from sessiond.methods.table import METHODS
from sessiond.policy.visibility import LEAST_STEPS, in_tree

CONFIG = '[store]\ndurability = "os"\n'
OWN = "agent:main:own"
# Spawned one below the other, so that each lies deeper than the one before; none of them from OWN.
HIDDEN = [f"agent:main:hidden{depth}" for depth in range(4)]
ABSENT = "agent:main:nothing"
ADMIN = ("admin",)
ROOT = Path(sessiond.__file__).parent
# Packages whose work does not depend on the session that a call names.
INDEPENDENT_PACKAGES = ("rpc", "transports", "daemon", "events")

# Every method that takes the name of a session; "?" stands for the name, a key or an id.
BY_NAME: dict[str, dict[str, Any]] = {
    "sessions_history": {"sessionKey": "?"},
    "chat.history": {"sessionKey": "?"},
    "sessions_search": {"sessionKey": "?", "query": "x"},
    "sessions_send": {"sessionKey": "?", "message": "x"},
    "sessions.resolve": {"key": "?"},
    "sessions.preview": {"keys": ["?"]},
    "sessions.usage": {"key": "?"},
    "sessions.create": {"key": "?"},
    "sessions.patch": {"key": "?", "label": "x"},
    "sessions.reset": {"key": "?"},
    "sessions_inbox": {"sessionKey": "?"},
    "sessions.delete": {"key": "?"},
    "sessions.kill": {"key": "?"},
    "sessions.steer": {"key": "?", "message": "x"},
    "chat.send": {"sessionKey": "?", "message": "x"},
    "chat.inject": {"sessionKey": "?", "messages": [{"role": "user", "content": "x"}]},
    "chat.abort": {"sessionKey": "?"},
    "sessions.messages.subscribe": {"key": "?"},
    "sessions.messages.unsubscribe": {"key": "?"},
    "tokens.mint": {"sessionKey": "?", "scopes": ["list"]},
    "questions.list": {"sessionKey": "?"},
}
# These name no session, or return lists, which contain only what the caller may see.
WITHOUT_NAME = {
    *("initialize", "ping", "rpc.discover", "daemon.status", "daemon.doctor", "agents_list", "tokens.list"),
    *("sessions_list", "sessions.list", "sessions_spawn", "sessions.prune", "sessions.import"),
    *("sessions.subscribe", "sessions.unsubscribe", "agents.attach", "channels.attach", "run.event", "tokens.revoke"),
    *("http.open", "http.close"),
    # For the owner alone.
    *("hooks.report", "hooks.ask", "hooks.list", "sessions.bytes", "sessions.heads", "machines.report"),
}
# `agents.ask` is for who lives the run. Ids of questions are random; test_questions_answer.py compares the words.
BY_RUN = {"agent.wait", "agents.ask", "questions.answer"}


def test_every_method_is_in_a_table_here() -> None:
    assert {method.name for method in METHODS} == BY_NAME.keys() | WITHOUT_NAME | BY_RUN


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[InProcessDaemon, Connection, Connection]]:
    """The daemon, the owner's connection, and that of an admin who sees nothing but OWN."""
    async with in_process_daemon(folder, CONFIG) as parts, parts.connect() as owner:
        await owner.say(OWN, "hello")
        above: dict[str, str] = {}
        for key in HIDDEN:
            await owner.call("sessions.create", key=key, **above)
            await owner.say(key, "hello")
            above = {"parentSessionKey": key}
        token = (await owner.call("tokens.mint", scopes=ADMIN, sessionKey=OWN))["token"]
        async with parts.connect(parts.services.tokens.caller(token)) as connection:
            yield parts, owner, connection


def serves_a_connection() -> bool:
    """Whether this task belongs to a connection. Others save the index and read watched files at any time."""
    try:
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    except RuntimeError:
        return False
    while task is not None:
        if task.name.endswith(f"{InProcessDaemon.connect.__qualname__}.<locals>.serve"):
            return True
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return False


@cache
def shown_place(filename: str) -> str | None:
    """A file of sessiond, as it is recorded; None for those of the independent packages and of others."""
    file = Path(filename)
    if ROOT not in file.parents or file.relative_to(ROOT).parts[0] in INDEPENDENT_PACKAGES:
        return None
    return str(file.relative_to(ROOT))


@contextmanager
def record_calls() -> Iterator[list[str]]:
    """Every function of sessiond that is called for a connection, without those of the independent packages."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event != "call":
            return
        place = shown_place(frame.f_code.co_filename)
        if place is not None and serves_a_connection():
            found.append(f"{place}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def with_name(params: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: name if value == "?" else [name] if value == ["?"] else value for key, value in params.items()}


async def test_hidden_and_missing_sessions_get_the_same_answer_from_the_same_functions(tmp_path: Path) -> None:
    @check_each("method", BY_NAME)
    async def check(method: str) -> None:
        ids = [(await owner.call("sessions.resolve", key=key))["sessionId"] for key in (HIDDEN[0], HIDDEN[-1])]
        for names in ([ABSENT, *HIDDEN], ["0" * 8 + ids[0][8:], *ids]):
            taken: list[tuple[list[str], str]] = []
            for name in (names[0], *names):  # the first call fills caches and is not compared
                with record_calls() as found:
                    answer = await connection.answer(await connection.send(method, **with_name(BY_NAME[method], name)))
                shown = str(answer.get("error", answer.get("result"))).replace(name, "?")
                taken.append((found, shown))
            assert taken[1][0], "no calls were recorded"
            assert taken[2:] == [taken[1]] * (len(names) - 1)
            assert not [call for call in taken[1][0] if call.startswith("store/store") and "cursor" not in call]
            assert parts.services.supervisor.live_runs() == 0

    async with world(tmp_path) as (parts, owner, connection):
        await check()


async def test_a_run_of_a_hidden_session_looks_like_a_missing_run(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, owner, connection):
        runs = [(await owner.call("chat.send", sessionKey=key, message="x"))["runId"] for key in HIDDEN]
        for run_id in runs:
            await owner.call("agent.wait", runId=run_id)
        taken = []
        # A run of no session, runs in memory, and missing runs of existing sessions. All ids have the same length,
        # because the error repeats the id character by character. The first call fills caches and is not compared.
        none = "0" * 8 + runs[0][8:]
        for run_id in [none, none, *runs, _missing_run_id(runs[0]), _missing_run_id(runs[-1])]:
            with record_calls() as found:
                answer = await connection.answer(await connection.send("agent.wait", runId=run_id))
            taken.append((found, str(answer["error"]).replace(run_id, "?")))
        assert taken[1][0], "no calls were recorded"
        assert taken[1:] == [taken[1]] * (len(taken) - 1)


def _missing_run_id(run_id: str) -> str:
    """A well-formed run id of the same session that no run has."""
    return run_id[:-1] + ("0" if run_id[-1] != "0" else "1")


@check_each("depth", range(LEAST_STEPS + 3))
def test_a_walk_up_the_tree_that_finds_nothing_takes_a_least_number_of_steps(depth: int) -> None:
    visited: list[str] = []

    def spawner_of(key: str) -> str | None:
        visited.append(key)
        number = int(key)
        return str(number - 1) if number else None

    assert not in_tree("own", str(depth), spawner_of, LEAST_STEPS)
    assert len(visited) == max(depth + 1, LEAST_STEPS)


@check_each("way", ["spawn", "patch", "create"])
async def test_the_label_of_a_hidden_session_can_be_used(tmp_path: Path, way: str) -> None:
    async with world(tmp_path) as (_, owner, connection):
        await owner.call("sessions.patch", key=HIDDEN[0], label="secret project")

        async def take(label: str) -> dict[str, Any]:
            if way == "spawn":
                request = await connection.send("sessions_spawn", task="x", label=label)
            elif way == "patch":
                request = await connection.send("sessions.patch", key="current", label=label)
            else:
                request = await connection.send("sessions.create", label=label)
            return await connection.answer(request)

        assert "result" in await take("secret project")
        # A label of a visible session is still in use; the owner sees all sessions.
        await connection.call("sessions.create", label="mine")
        assert (await take("mine"))["error"]["data"]["code"] == "label_in_use"
        assert (await owner.failure("sessions.create", label="secret project"))["data"]["code"] == "label_in_use"
        # A message by an ambiguous label goes nowhere: the owner, who sees both sessions, must name one.
        failed = await owner.failure("sessions_send", label="secret project", message="x")
        assert failed["code"] == -32004 and HIDDEN[0] in failed["message"]
        resolved = await connection.call("sessions.resolve", label="secret project")
        assert resolved["key"] not in HIDDEN


@pytest.mark.parametrize("label", ["hidden label", "no such label"])
async def test_a_hidden_session_is_not_found_by_its_label(tmp_path: Path, label: str) -> None:
    async with world(tmp_path) as (_, owner, connection):
        await owner.call("sessions.patch", key=HIDDEN[2], label="hidden label")
        for params in ({"label": label}, {"label": label, "agentId": "main"}):
            assert (await connection.failure("sessions.resolve", **params))["code"] == -32002
            assert (await connection.failure("sessions_send", message="x", **params))["code"] == -32002
        if label == "no such label":
            assert (await owner.failure("sessions.resolve", label=label))["code"] == -32002
