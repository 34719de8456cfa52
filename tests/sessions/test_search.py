from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE_S
from support.sampling import amount
from support.store_listeners import SilentListener

from sessiond.clock import iso_ms
from sessiond.model.case import fold_case
from sessiond.model.keys import KeyRules
from sessiond.policy.secrets import mask_secrets
from sessiond.sessions.search import Query, search
from sessiond.store.store import SessionStore, open_store
from sessiond.store.time_slicer import TimeSlicer

T = 1_795_300_000_000
LIMIT = 4096


def _key(number: int) -> str:
    return f"agent:main:s{number}"


def _header(number: int, at: int) -> dict[str, Any]:
    head = {"type": "session", "version": 3, "id": f"s{number}", "timestamp": iso_ms(at), "cwd": "/"}
    return {**head, "sessionKey": _key(number), "agentId": "main"}


def _message(role: str, text: Any, at: int) -> dict[str, Any]:
    message = {"role": role, "content": text, "timestamp": at}
    return {"type": "message", "id": f"{at:x}", "parentId": None, "timestamp": iso_ms(at), "message": message}


def _write(folder: Path, number: int, lines: list[Any], *, dump: Callable[[Any], str] = json.dumps) -> None:
    sessions = folder / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else dump(line) for line in lines]
    (sessions / f"s{number}.jsonl").write_text("\n".join(texts) + "\n")


def _show_unmasked(text: str) -> str:
    return text


def _show_masked(text: str) -> str:
    return mask_secrets(text)[0]


async def _search(folder: Path, text: str, limit: int = 50, **more: Any) -> tuple[list[dict[str, Any]], bool]:
    """The matches as the method returns them, with the number of each message in its session."""
    async with open_store(
        folder, listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
    ) as store:
        return await _search_store(store, text, limit, **more)


async def _search_store(
    store: SessionStore, text: str, limit: int = 50, **more: Any
) -> tuple[list[dict[str, Any]], bool]:
    query = Query(text=text, limit=limit, **{"shown": _show_unmasked, **more})
    page = await search(store, TimeSlicer(), list(store.catalog.by_key.values()), query)
    told = [
        {
            "key": match.session.key,
            "at": match.timestamp,
            "role": match.role,
            "seq": store.position(match.session, cursor).seq,
            "snippet": match.snippet,
        }
        for match, cursor in page.found
    ]
    return told, page.has_more


WORDS = [
    "alpha",
    "Beta",
    "gamma delta",
    "\u00c9t\u00e9",
    "\u65e5\u672c",
    'say "no"',
    "\\path\\",
    "a/b",
    "\u0416ar",
    "ALPHABET",
    "x",
]
ROLES = ["user", "assistant", "toolResult"]
DUMPS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda record: json.dumps(record, ensure_ascii=False, separators=(",", ":")),
    lambda record: json.dumps(record, sort_keys=True),
]
said = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(ROLES),
        st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
        st.sampled_from(["message", "message", "blocks", "thinking", "bad", "custom", "blank", "long"]),
        st.integers(0, len(DUMPS) - 1),
    ),
    max_size=25,
)


@settings(max_examples=amount(60, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=said,
    asked=st.fixed_dictionaries({
        "query": st.sampled_from([*WORDS, "ALPHA", "TA", "\u00e9T", "\u672c", '"', "\\", "zzz", "a b", "message"]),
        "limit": st.integers(1, 8),
        "role": st.none() | st.sampled_from(ROLES),
        "since": st.none() | st.integers(0, 25),
        "block": st.sampled_from([64, 1000, 10**6]),
    }),
    mask=st.booleans(),
)  # fmt: skip
def test_a_search_finds_what_reading_every_message_finds(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[tuple[int, str, str, str, int]],
    asked: dict[str, Any],
    mask: bool,
) -> None:
    query, limit, since = asked["query"], asked["limit"], asked["since"]
    folder = tmp_path_factory.mktemp("store")
    lines: dict[int, list[Any]] = {number: [_header(number, T - 1)] for number in range(3)}
    seqs = dict.fromkeys(range(3), 0)
    expected: list[dict[str, Any]] = []
    for place, (number, who, text, shape, dump) in enumerate(said):
        at = T + place * 1000
        first, text = text[:4], text + " token=alphaBETA0123456789" * (mask and place % 3 == 0)
        content: Any = text
        if shape == "blocks":
            content = [{"type": "text", "text": first}, {"type": "text", "text": text[len(first) :]}]
            text = f"{first}\n{text[len(first) :]}"
        elif shape == "thinking":
            content, text = [{"type": "thinking", "thinking": text}, {"type": "toolCall", "arguments": {"x": text}}], ""
        elif shape == "long":
            content = text = text + " " + "y" * LIMIT
        line = DUMPS[dump](_message(who, content, at))
        if shape == "bad":
            line = line[:-3]
        elif shape == "custom":
            line = DUMPS[dump]({"type": "custom", "customType": "x", "data": {"message": text}})
        elif shape == "blank":
            line = "  "
        lines[number].append(line)
        if shape in ("bad", "custom", "blank") or len(line.encode()) > LIMIT:
            continue
        seqs[number] += 1
        shown = _show_masked(text) if mask else text
        if fold_case(query) not in fold_case(shown) or fold_case(query) not in fold_case(text):
            continue
        if asked["role"] in (None, who) and (since is None or place >= since):
            expected.insert(0, {"key": _key(number), "at": at, "role": who, "seq": seqs[number]})
    for number, of_session in lines.items():
        _write(folder, number, of_session)
    wanted = {
        "role": asked["role"],
        "since_ms": None if since is None else T + since * 1000,
        "shown": _show_masked if mask else _show_unmasked,
        "block": asked["block"],
    }
    found, has_more = trio.run(lambda: _search(folder, query, limit, **wanted))
    for match in found:
        assert "alphaBETA" not in match.pop("snippet") or not mask
    assert found == expected[:limit]
    assert has_more == (len(expected) > limit)


async def test_matches_of_several_sessions_are_in_order_of_time(tmp_path: Path) -> None:
    for number in range(3):
        times = [T + place * 3000 + number * 1000 for place in range(4)]
        _write(tmp_path, number, [_header(number, T), *(_message("user", "hello", at) for at in times)])
    found, has_more = await _search(tmp_path, "hello", 7)
    assert [match["at"] for match in found] == [T + place * 1000 for place in range(11, 4, -1)]
    assert [match["seq"] for match in found] == [4, 4, 4, 3, 3, 3, 2]
    assert has_more
    _, has_more = await _search(tmp_path, "hello", 12)
    assert not has_more


async def test_a_search_stops_reading_when_it_has_enough_matches(tmp_path: Path) -> None:
    for number in range(20):
        _write(tmp_path, number, [_header(number, T), _message("user", "hello", T + number)])
    async with open_store(
        tmp_path, listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
    ) as store:
        for session in store.catalog.by_key.values():
            if session.entry.updated_at < T + 17:
                os.unlink(session.file_name, dir_fd=session.folder.fd)
        found, has_more = await _search_store(store, "hello", 2)
    assert [match["at"] for match in found] == [T + 19, T + 18]
    assert has_more


async def test_files_that_were_removed_or_replaced_are_skipped(tmp_path: Path) -> None:
    for number in range(4):
        _write(tmp_path, number, [_header(number, T), _message("user", "hello", T + number)])
    async with open_store(
        tmp_path, listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
    ) as store:
        sessions = tmp_path / "agents" / "main" / "sessions"
        (sessions / "s0.jsonl").unlink()
        (sessions / "s1.jsonl").rename(sessions / "away")
        (sessions / "s1.jsonl").write_bytes((sessions / "away").read_bytes())
        os.truncate(sessions / "s2.jsonl", 10)
        found, has_more = await _search_store(store, "hello")
    assert ([match["key"] for match in found], has_more) == ([_key(3)], False)


async def test_a_snippet_shows_the_match_and_some_text_around_it(tmp_path: Path) -> None:
    text = "x " * 100 + "\n\t The   Needle\nis here " + "y" * 300
    _write(tmp_path, 0, [_header(0, T), _message("user", text, T), _message("user", " Needle ", T + 1)])
    found, _ = await _search(tmp_path, "needle")
    short, long = (match["snippet"] for match in found)
    assert short == "Needle"
    assert long.startswith("\u2026x x")
    assert "x The Needle is here yyy" in long
    assert long.endswith("y\u2026")
    assert 150 < len(long) < 220


async def test_a_masked_secret_is_neither_shown_nor_found(tmp_path: Path) -> None:
    secret = "password = hunter2hunter2hunter2 and more"
    _write(tmp_path, 0, [_header(0, T), _message("user", secret, T)])
    found, _ = await _search(tmp_path, "hunter2", shown=_show_masked)
    assert found == []
    found, _ = await _search(tmp_path, "hunter2")
    assert len(found) == 1
    found, _ = await _search(tmp_path, "and more", shown=_show_masked)
    assert "hunter2hunter2" not in found[0]["snippet"]


async def test_a_cancelled_search_stops_before_it_has_read_everything(tmp_path: Path) -> None:
    _write(tmp_path, 0, [_header(0, T), *(_message("user", "hello " * 50, T + n) for n in range(3000))])
    async with open_store(
        tmp_path, listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
    ) as store:
        looked = 0

        def shown(text: str) -> str:
            nonlocal looked
            looked += 1
            return text

        async with trio.open_nursery() as nursery:
            query = Query(text="hello", limit=10**6, shown=shown)
            nursery.start_soon(search, store, TimeSlicer(), list(store.catalog.by_key.values()), query)
            with trio.fail_after(PATIENCE_S):
                while not looked:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert 0 < looked < 3000


async def test_the_time_of_a_page_begins_where_the_page_before_ended(tmp_path: Path) -> None:
    for number in range(6):
        _write(tmp_path, number, [_header(number, T), _message("user", f"hello {number}", T + number)])
    async with open_store(
        tmp_path, listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
    ) as store:
        asked = 0

        def is_over() -> bool:
            nonlocal asked
            asked += 1
            return asked > 1

        sessions = list(store.catalog.by_key.values())
        query = Query(text="hello", limit=50, shown=_show_unmasked, is_over=is_over, after=(-(T + 2),))
        page = await search(store, TimeSlicer(), sessions, query)
        assert [match.timestamp - T for match, _ in page.found] == [2, 1]
        assert (asked, page.next_place) == (2, (-T,))
