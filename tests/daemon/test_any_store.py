"""Any JSON in any field of any record, index or outbox file: the daemon starts, recovers, follows, and is repaired.

Each example: files are written by hand, the daemon is started, other programs append to them, the index is damaged,
checked and repaired offline, and the daemon started again. SESSIOND_EXAMPLES sets the number; 20000 take an hour.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.in_process import InProcessDaemon, Refused, in_process_daemon
from support.sampling import amount

from sessiond.store import doctor

EXAMPLES = int(os.environ.get("SESSIOND_EXAMPLES", amount(40, 4)))
T = 1795224660000
CHILD_ID = "11111111-1111-4111-8111-111111111111"
OTHER_ID = "22222222-2222-4222-8222-222222222222"
MAIN, CHILD = "agent:main:main", f"agent:main:subagent:{CHILD_ID}"
KEYS = {"s1": MAIN, CHILD_ID: CHILD, OTHER_ID: "agent:main:cron:x"}
RUN, STEP = "s1.0123456789abcdef", f"{CHILD_ID}.0123456789abcdef"
CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
[models.pricing.m]
input = 3.0
output = 15.0
[channels.telegram]
command = ["true", "{to}", "{text}"]
"""

HUGE = int("9" * 400)
TEXTS = st.sampled_from(
    ["", "\ud83d", "cut \udc00", "\0", "../../x", MAIN, CHILD, RUN, "ok", "accepted", "running", "x" * 5000]
)
HOSTILE = st.recursive(
    st.none() | st.booleans() | TEXTS | st.sampled_from([0, -1, 0.5, HUGE, -HUGE, 2**53, 2**64, 1e300, T]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
) | st.sampled_from([json.loads("[" * 60 + "]" * 60), json.loads("[" * 200 + "]" * 200)])


def custom(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "custom", "customType": f"sessiond/{kind}", "id": "c", "parentId": None, "data": data}


MESSAGE = {"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": T}
USAGE = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0.1}}
OPEN_CONVERSATION = {
    "conversation": {"requesterKey": CHILD, "targetKey": MAIN, "request": "", "maxTurns": 2},
    "traceId": "t",
    "hops": 1,
    "requesterSessionId": CHILD_ID,
}
REQUEST = {"text": "hi", "message": MESSAGE, "step": "primary", "timeoutS": 5.0, "follow": {"talk": OPEN_CONVERSATION}}
SPAWN = {"mode": "run", "cleanup": "delete", "requesterKey": MAIN, "attachments": {"relDir": "x"}, "mountPath": "/x"}
RECORDS: list[dict[str, Any]] = [
    {"type": "message", "id": "m", "parentId": None, "timestamp": "2026-11-21T01:31:00.779Z", "message": MESSAGE},
    {"type": "message", "id": "a", "message": {**MESSAGE, "role": "assistant", "usage": USAGE, "model": "m"}},
    custom(
        "run", {"runId": RUN, "status": "accepted", "at": T, "request": REQUEST, "idempotencyKey": "k", "payload": "p"}
    ),
    custom("run", {"runId": RUN, "status": "running", "at": T}),
    custom("run", {"runId": RUN, "status": "ok", "at": T, "usage": USAGE, "replyId": "a", "estimatedCostUsd": 1}),
    custom("run", {"runId": STEP, "status": "accepted", "at": T, "request": {**REQUEST, "follow": {"spawn": {}}}}),
    custom("run", {"runId": STEP, "status": "error", "at": T, "error": "x"}),
    custom("talk", {"talkId": RUN, "status": "open", "topic": OPEN_CONVERSATION}),
    custom("talk", {"talkId": RUN, "status": "closed", "delivery": "pending", "deliveryId": "d"}),
    custom("entry", {"spawn": SPAWN, "spawnDepth": 1, "sandboxed": False, "label": "x"}),
    custom("entry", {"spawn": {"ended": STEP}}),
    custom("entry", {"deliveryContext": {"channel": "telegram", "to": "1", "threadId": 5}, "contextTokens": 5}),
    {"type": "model_change", "modelId": "m", "provider": "p"},
    {"type": "thinking_level_change", "thinkingLevel": "low"},
    {"type": "session_info", "name": "x"},
]
DELIVERY = {
    "deliveryId": "d1",
    "channel": "telegram",
    "to": "1",
    "sessionKey": MAIN,
    "text": "x",
    "title": "x",
    "createdAt": T,
}


def paths_in(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a value, from the outside in."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, item in inner for place in ((*before, name), *paths_in(item, (*before, name)))]


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The value with up to two of the values within it replaced by hostile ones."""
    made = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, 2))):
        places = paths_in(made)
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        inner = made
        for name in parents:
            inner = inner[name]
        # A copy, because a drawn value may be drawn again.
        inner[last] = copy.deepcopy(draw(HOSTILE))
    return made


LINES = st.lists(
    st.one_of(
        st.sampled_from(RECORDS).flatmap(mutated).map(json.dumps), st.sampled_from(["", "torn", "NaN", '{"a":1e999}'])
    ),
    max_size=6,
)


@st.composite
def transcripts(draw: st.DrawFn) -> dict[str, str]:
    """Some transcripts: most with a header of ours, some with another program's or none."""
    made = {}
    for name in draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, unique=True)):
        header = {"type": "session", "version": 3, "id": name, "timestamp": T, "cwd": "/", "sessionKey": KEYS[name]}
        header |= {"spawnedBy": MAIN} if name == CHILD_ID else {}
        first = draw(st.just(header) | mutated(header) | st.just({"type": "session", "id": name}))
        made[name] = "".join(line + "\n" for line in [json.dumps(first), *draw(LINES)])
    return made


FOREIGN = {"agent:main:main": {"sessionId": "s1", "updatedAt": T, "displayName": "x", "origin": {"a": 1}}}


@given(
    files=transcripts(),
    later=st.dictionaries(st.sampled_from(sorted(KEYS)), LINES, max_size=2),
    deliveries=st.lists(mutated(DELIVERY), max_size=2),
    foreign=st.none() | mutated(FOREIGN),
    damage=st.lists(st.tuples(st.integers(0, 10**6), HOSTILE), max_size=3),
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
def test_the_daemon_works_with_any_store_and_doctor_repairs_it(
    *, tmp_path_factory: Any, files: Any, later: Any, deliveries: Any, foreign: Any, damage: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    sessions, outbox = folder / "store/agents/main/sessions", folder / "store/outbox"
    for made in (sessions, outbox):
        made.mkdir(parents=True, mode=0o700)
    for name, text in files.items():
        (sessions / f"{name}.jsonl").write_text(text)
    for number, delivery in enumerate(deliveries):
        (outbox / f"d{number}.json").write_text(json.dumps(delivery))
    if foreign is not None:
        (sessions / "sessions.json").write_text(json.dumps(foreign))
    trio.run(_run_with_foreign_appends, folder, later)
    damage_index(sessions / "sessions.json", damage)
    assert doctor.report(folder / "store")["findings"]
    repaired = doctor.report(folder / "store", fix=True)["findings"]
    assert not [one for one in repaired if one["level"] == "error"], repaired
    trio.run(_run_after_repair, folder)
    assert not [one for one in doctor.report(folder / "store")["findings"] if "says something else" in one["what"]]


async def _run_with_foreign_appends(folder: Path, later: dict[str, list[str]]) -> None:
    async with in_process_daemon(folder, CONFIG) as daemon:
        await _use_daemon(daemon, "agent:main:fresh")
        for name, lines in later.items():
            with (folder / f"store/agents/main/sessions/{name}.jsonl").open("a") as file:
                file.write("".join(line + "\n" for line in lines))
        await trio.testing.wait_all_tasks_blocked(0.005)
        await _use_daemon(daemon, "agent:main:fresh")


async def _run_after_repair(folder: Path) -> None:
    async with in_process_daemon(folder, CONFIG) as daemon:
        await _use_daemon(daemon, "agent:main:again")


async def _use_daemon(daemon: InProcessDaemon, key: str) -> None:
    """Send a message and call everything that reads."""
    async with daemon.connect() as client:
        assert await client.say(key, "hello") == "hello"
        rows = (await client.call("sessions_list", limit=200, messageLimit=2))["sessions"]
        assert key in [row["key"] for row in rows]
        await client.call("sessions.preview", keys=[row["key"] for row in rows][:60])
        for row in rows:
            refused = await _refusal(client.call("sessions_history", sessionKey=row["key"], includeTools=True))
            # A child with `cleanup: delete` may just have been archived.
            if refused is not None:
                assert refused["code"] == -32002
                listed = (await client.call("sessions_list", limit=200))["sessions"]
                assert row["key"] not in [one["key"] for one in listed]
        await client.call("sessions_search", query="hi")
        await client.call("sessions.usage")
        await client.call("daemon.status")
        await client.call("daemon.doctor")


async def _refusal(call: Awaitable[Any]) -> dict[str, Any] | None:
    try:
        await call
    except Refused as refusal:
        error: dict[str, Any] = refusal.args[0]
        return error
    return None


def damage_index(index: Path, damage: list[tuple[int, Any]]) -> None:
    """Replace some values within the index."""
    rows = json.loads(index.read_text())
    for number, value in damage:
        places = paths_in(rows)
        *parents, last = places[number % len(places)]
        inner = rows
        for name in parents:
            inner = inner[name]
        inner[last] = copy.deepcopy(value)
    index.write_text(json.dumps(rows))
