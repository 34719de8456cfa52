from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
import trio.testing
from msgspec.structs import replace
from support.in_process import in_process_daemon

from sessiond.clock import iso_ms
from sessiond.model.caller import Caller
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.model.source_facts import SourceFacts
from sessiond.rpc.budget import MIB
from sessiond.sessions.usage import MOST_NAMES
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder

DAY = 86_400_000
T = 1_795_305_600_000  # a midnight, UTC
PRICES = """
[models.pricing.priced]
input = 3.0
output = 15.0
cacheRead = 0.5
"""


def _token_counts(number: int, **more: Any) -> dict[str, Any]:
    return {"input": number, "output": number * 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": number * 3, **more}


def _message_record(
    record_id: str, at: int, usage: Any, model: str | None = "big", role: str = "assistant"
) -> dict[str, Any]:
    message = {"role": role, "content": [], "model": model, "usage": usage, "timestamp": at}
    return {"type": "message", "id": record_id, "parentId": None, "timestamp": iso_ms(at), "message": message}


def _write(folder: Path, number: int, *records: Any, key: str | None = None, archived: bool = False) -> None:
    sessions = folder / "store" / "agents" / "main" / "sessions" / ("archive" if archived else "")
    sessions.mkdir(parents=True, exist_ok=True)
    head = {"type": "session", "version": 3, "id": f"s{number}", "timestamp": iso_ms(T + number), "cwd": "/"}
    head |= {"sessionKey": key or f"agent:main:s{number}", "agentId": "main"}
    lines = [json.dumps(record) if isinstance(record, dict) else record for record in (head, *records)]
    (sessions / f"s{number}.jsonl").write_text("\n".join(lines) + "\n")


def _expected_row(total: int, cost: float | None = None, unpriced: int | None = None, **more: Any) -> dict[str, Any]:
    """`unpriced`: as many tokens have no cost; all of them where there is none at all."""
    unpriced = (total if cost is None else 0) if unpriced is None else unpriced
    more |= {"unpricedTokens": unpriced} if unpriced else {}
    sums = {"inputTokens": total // 3, "outputTokens": total // 3 * 2, "cacheRead": 0, "cacheWrite": 0}
    return {**more, **sums, "totalTokens": total, **({} if cost is None else {"costUsd": cost})}


async def test_tokens_and_cost_are_summed_by_session_model_and_day(tmp_path: Path) -> None:
    _write(
        tmp_path,
        0,
        _message_record("a", T, _token_counts(100, cost={"total": 0.1})),
        _message_record("b", T + DAY - 1, _token_counts(200, cost={"total": 0.2})),
        _message_record("c", T + DAY, _token_counts(10), model="small"),
        _message_record("d", T + DAY, _token_counts(7), role="user"),
        _message_record("e", T + DAY, {"input": "many"}),
        _message_record("f", T + DAY, None),
        '{"type":"message","message":{"role":"assistant","usage":{"input":5',
        {"type": "custom", "customType": "sessiond/run", "data": {"usage": _token_counts(3), "estimatedCostUsd": 9}},
    )
    _write(tmp_path, 1, _message_record("g", T + 2 * DAY, _token_counts(1), model=None), archived=True)
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert await client.call("sessions.usage") == {
            "totals": _expected_row(933, 0.3, 33),
            "bySession": [
                _expected_row(930, 0.3, 30, key="agent:main:s0", sessionId="s0", archived=False),
                _expected_row(3, key="agent:main:s1", sessionId="s1", archived=True),
            ],
            "byModel": [
                _expected_row(900, 0.3, model="big"),
                _expected_row(30, model="small"),
                _expected_row(3, model="unknown"),
            ],
            "byDay": [
                _expected_row(900, 0.3, day="2026-11-22"),
                _expected_row(30, day="2026-11-23"),
                _expected_row(3, day="2026-11-24"),
            ],
            "byProject": [_expected_row(933, 0.3, 33, cwd="/")],
            "byAgent": [_expected_row(933, 0.3, 33, agentId="main")],
            "bySource": [_expected_row(933, 0.3, 33, source="sessiond")],
        }
        # The daemon's own counters of the live session agree.
        entry = daemon.services.store.catalog.by_key["agent:main:s0"].entry
        assert (entry.input_tokens, entry.output_tokens) == (310, 620)


async def test_what_has_to_be_read_waits_for_memory_and_what_is_in_the_entries_does_not(tmp_path: Path) -> None:
    _write(tmp_path, 0, *(_message_record(f"m{n}", T + n * 1000, _token_counts(10**n)) for n in range(4)))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        budget = daemon.services.budgets.owner
        shares = [await budget.take(holder, size) for holder, size in (("a", 64 * MIB), ("b", 32 * MIB))]
        assert (await client.call("sessions.usage"))["totals"]["totalTokens"] == 3333
        found: list[int] = []

        async def ask() -> None:
            found.append((await client.call("sessions.usage", since=T + 1000))["totals"]["totalTokens"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert found == []
            for share in shares:
                share.release()
        assert found == [3330]


async def test_more_names_than_an_answer_has_are_summed_up_as_other(tmp_path: Path) -> None:
    for number, count in enumerate((MOST_NAMES, MOST_NAMES + 2)):
        lines = [_message_record(f"m{n}", T - n * DAY, _token_counts(1), model=f"model {n}") for n in range(count)]
        _write(tmp_path, number, *lines, key=f"agent:main:of{count}")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        whole = await client.call("sessions.usage", key=f"agent:main:of{MOST_NAMES}")
        assert len(whole["byModel"]) == len(whole["byDay"]) == MOST_NAMES
        assert "other" not in {row["model"] for row in whole["byModel"]} | {row["day"] for row in whole["byDay"]}
        more = await client.call("sessions.usage", key=f"agent:main:of{MOST_NAMES + 2}")
        for rows, name in ((more["byModel"], "model"), (more["byDay"], "day")):
            assert [row["totalTokens"] for row in rows if row[name] == "other"] == [6]
            assert len(rows) == MOST_NAMES + 1 and sum(row["totalTokens"] for row in rows) == 3 * (MOST_NAMES + 2)


async def test_since_is_inclusive_and_until_exclusive(tmp_path: Path) -> None:
    _write(tmp_path, 0, *(_message_record(f"m{n}", T + n * 1000, _token_counts(10**n)) for n in range(4)))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for span, total in (
            ({}, 3333),
            ({"since": T + 1000}, 3330),
            ({"since": T + 1001}, 3300),
            ({"until": T + 3000}, 333),
            ({"until": T + 3001}, 3333),
            ({"since": T + 1000, "until": T + 3000.9}, 330),
            ({"since": T + 2000, "until": T + 2000}, 0),
            ({"since": -5, "until": 10**20}, 3333),
            ({"since": T + 4000}, 0),
        ):
            found = await client.call("sessions.usage", **span)
            assert found["totals"]["totalTokens"] == total
            assert len(found["bySession"]) == len(found["byDay"]) == (total > 0)
        assert (await client.failure("sessions.usage", since=2, until=1))["data"]["field"] == "$.until"


async def test_a_message_stored_twice_counts_once(tmp_path: Path) -> None:
    first, second = _message_record("a", T, _token_counts(100)), _message_record("b", T + 1, _token_counts(10))
    _write(tmp_path, 0, first, first, second)
    # A fork begins with a copy of the earlier messages.
    _write(tmp_path, 1, first, second, _message_record("c", T + 2, _token_counts(1)))
    # The same short id at another time is another message, and messages without an id are all different.
    _write(
        tmp_path,
        2,
        _message_record("a", T + 5, _token_counts(1000)),
        _message_record(None, T, _token_counts(1)),
        _message_record(None, T, _token_counts(1)),
    )  # type: ignore[arg-type]
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        found = await client.call("sessions.usage")
        assert {row["sessionId"]: row["inputTokens"] for row in found["bySession"]} == {"s0": 110, "s1": 1, "s2": 1002}
        assert found["totals"]["inputTokens"] == 1113


async def test_the_configured_price_is_used_for_messages_without_a_cost(tmp_path: Path) -> None:
    usage = {"input": 1_000_000, "output": 100_000, "cacheRead": 10_000, "cacheWrite": 1000}
    _write(
        tmp_path,
        0,
        _message_record("a", T, usage, "priced"),
        _message_record("b", T, {**usage, "cost": {"total": 1.0}}, "priced"),
    )
    _write(tmp_path, 1, _message_record("c", T, usage, "free"))
    async with in_process_daemon(tmp_path, PRICES) as daemon, daemon.connect() as client:
        found = await client.call("sessions.usage")
        assert {row["model"]: row.get("costUsd") for row in found["byModel"]} == {"priced": 5.508, "free": None}
        assert found["totals"]["totalTokens"] == 3 * 1_111_000


async def test_only_visible_sessions_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        _write(tmp_path, number, _message_record(f"m{number}", T, _token_counts(10**number)))
    _write(tmp_path, 9, _message_record("m9", T, _token_counts(1000)), key="agent:main:s1", archived=True)
    caller = Caller(kind="token", scopes=frozenset(["list"]), session_key="agent:main:s1", agent_id="main")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect(caller) as agent, daemon.connect() as client:
        found = await agent.call("sessions.usage")
        assert sorted(row["sessionId"] for row in found["bySession"]) == ["s1", "s9"]
        assert found["totals"]["inputTokens"] == 1010
        assert (await agent.failure("sessions.usage", key="agent:main:s0"))["code"] == -32002
        found = await client.call("sessions.usage", key="agent:main:s1")
        assert sorted(row["sessionId"] for row in found["bySession"]) == ["s1", "s9"]


async def test_sessions_that_are_not_read_whole_are_counted_as_partial(tmp_path: Path) -> None:
    _write(tmp_path, 0, _message_record("a", T, _token_counts(1)))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert "partial" not in await client.call("sessions.usage")
        source = SourceFacts(name="claude", partial=True)
        entry = Entry(session_id="n", session_key="claude:n", source=source)
        folder = Folder("", -1, DIALECTS["claude"], source="claude")
        daemon.services.store.catalog.add(Session(key="claude:n", entry=entry, folder=folder))
        found = await client.call("sessions.usage")
        assert (found["partial"], found["totals"]["inputTokens"]) == (1, 1)
        # Nor does the beginning of a file that was replaced just now.
        own = daemon.services.store.catalog.by_id["s0"]
        own.entry = replace(own.entry, file=replace(own.entry.file, bytes=0))
        found = await client.call("sessions.usage")
        assert (found["partial"], found["totals"]["inputTokens"]) == (2, 0)
