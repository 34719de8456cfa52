"""What a peer signs may be anything: it changes nothing but that peer's own folder, and ends nothing."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.link_stand_ins import run_until, settle, until
from support.patience import PATIENCE_S

from sessiond.link.copy_asker import Ask, CopyAsker, Wanted
from sessiond.link.copy_states import CopyStates
from sessiond.link.envelope import PeerMessage, Refused
from sessiond.link.failures import BusError
from sessiond.link.ranges import ANSWER_BYTES, MAX_ROWS, RANGE_BYTES, CopyRequest, RowsRequest
from sessiond.link.transcript_reader import TranscriptReader, read_span

G1, G2 = "0" * 15 + "1", "0" * 15 + "2"
LAST = "f" * 16


class HeldCourier:
    """Hands messages to the reader, and counts what was acknowledged and dropped."""

    def __init__(self) -> None:
        self.takers: dict[str, Callable[[PeerMessage, Any], Awaitable[None]]] = {}
        self.dropped: list[Refused] = []
        self.acknowledged = 0
        self.when_acknowledged = asyncio.Event()

    def consume(self, kind: Any, take: Any) -> None:
        self.takers[kind] = take

    def drop(self, refused: Refused) -> None:
        self.dropped.append(refused)

    async def ack(self) -> None:
        self.acknowledged += 1
        self.when_acknowledged.set()


def message(kind: str, identity: str, fields: object, payload: bytes = b"", sender: str = "mars") -> PeerMessage:
    encoded = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return PeerMessage(sender, "lap", kind, identity, encoded, payload, False)


def range_of(session: str, data: bytes, begin: int = 0, /, **more: Any) -> PeerMessage:
    end = begin + len(data)
    fields = {"agent": "ops", "generation": G1, "from": begin, "to": end, "size": end, **more}
    return message("rec", session, fields, data)


def row_of(session: str, /, **more: Any) -> dict[str, Any]:
    return {"session": session, "agent": "ops", "generation": G1, **more}


def rows_of(counter: int, *rows: dict[str, Any], heads: bytes = b"") -> PeerMessage:
    return message("row", "rows", {"counter": counter, "rows": rows}, heads)


async def nobody(question: str, fields: Any) -> PeerMessage:
    raise BusError("nobody", "it is not there")


def play(
    store: Path,
    messages: Sequence[PeerMessage],
    told: list[dict[str, str]] | None = None,
    *,
    prepare: Callable[[CopyStates], object] = lambda states: None,
    ask: Ask = nobody,
    **limits: int,
) -> HeldCourier:
    """Let a reader of mars and moon take the messages, one after the other. `told` gets the limits that it tells of."""

    async def run() -> HeldCourier:
        courier, states = HeldCourier(), CopyStates(store)
        prepare(states)

        reader = TranscriptReader(
            store,
            states,
            ["mars", "moon"],
            courier=courier,
            asks=lambda machine: ask,
            changed=lambda: None if told is None else told.append(reader.limits),
            wall_ms=lambda: 1,
            **{"free_bytes": 0, **limits},
        )
        running = asyncio.create_task(reader.run())
        async with asyncio.timeout(PATIENCE_S):
            for number, one in enumerate(messages):
                await courier.takers[one.kind](one, courier)
                while courier.acknowledged <= number and not running.done():
                    courier.when_acknowledged.clear()
                    waiting = asyncio.create_task(courier.when_acknowledged.wait())
                    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        await settle()
        assert not running.done(), running.exception()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        states.close()
        return courier

    return asyncio.run(run())


def files_in(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.parent.name != "link"
    }


COPY_OF_S = "machines/mars/agents/ops/sessions/s.jsonl"


def test_ranges_and_rows_make_copies_and_rows_end_them(tmp_path: Path) -> None:
    head = b'{"type":"session"}\n'
    play(tmp_path, [range_of("s", b"abc"), rows_of(5, row_of("t", size=99, head=len(head)), heads=head)])
    assert files_in(tmp_path) == {COPY_OF_S: b"abc", COPY_OF_S.replace("s.jsonl", "t.jsonl"): head}
    courier = play(tmp_path, [rows_of(4, row_of("t", gone=True)), rows_of(6, row_of("s", gone=True))])
    assert files_in(tmp_path) == {COPY_OF_S.replace("s.jsonl", "t.jsonl"): head}, "an older row says nothing"
    assert courier.dropped == []
    play(tmp_path, [range_of("s", b"abc"), rows_of(7, row_of("s", head=3), heads=b"ab\n")])
    assert COPY_OF_S not in files_in(tmp_path)
    play(tmp_path, [range_of("s", b"new", generation=G2)])
    assert files_in(tmp_path)[COPY_OF_S] == b"new"
    play(tmp_path, [rows_of(8, row_of("s", gone=True))])
    assert files_in(tmp_path)[COPY_OF_S] == b"new", "the end of an older generation"


def test_a_copy_of_which_nothing_is_known_any_more_is_removed_with_its_session(tmp_path: Path) -> None:
    play(tmp_path, [range_of("s", b"abc"), range_of("t", b"abc")])
    for path in (tmp_path / "link").iterdir():
        path.unlink()
    play(tmp_path, [rows_of(5, row_of("s", gone=True))])
    assert files_in(tmp_path) == {COPY_OF_S.replace("s.jsonl", "t.jsonl"): b"abc"}
    play(tmp_path, [range_of("s", b"abc")])
    assert COPY_OF_S not in files_in(tmp_path)


def test_what_is_not_written_yet_is_kept_to_a_limit(tmp_path: Path) -> None:
    async def run() -> None:
        courier, states = HeldCourier(), CopyStates(tmp_path)
        reader = TranscriptReader(
            tmp_path,
            states,
            ["mars"],
            courier=courier,
            asks=lambda machine: nobody,
            changed=lambda: None,
            wall_ms=lambda: 1,
            free_bytes=0,
        )
        messages = [range_of("s", b"x", number, size=500) for number in range(500)]
        coming = [asyncio.create_task(courier.takers["rec"](one, courier)) for one in messages]
        await settle()
        assert sum(task.done() for task in coming) == 64
        running = asyncio.create_task(reader.run())
        await until(lambda: courier.acknowledged == 500)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        states.close()

    run_until(run)
    assert files_in(tmp_path) == {COPY_OF_S: b"x" * 500}


def test_rows_for_which_the_disk_has_no_room_end_nothing(tmp_path: Path) -> None:
    def fill(states: CopyStates) -> None:
        states._database.execute("pragma query_only = 1")

    play(tmp_path, [range_of("s", b"abc"), rows_of(5, row_of("s"))])
    courier = play(tmp_path, [rows_of(6, row_of("t", gone=True)), rows_of(7, row_of("u", size=5))], prepare=fill)
    assert courier.acknowledged == 2
    assert files_in(tmp_path) == {COPY_OF_S: b"abc"}


BAD_IDS = ["../s", "..", ".", "", "a/b", "/etc/passwd", "a\0b", ".tmp-1", "s" * 129, "ö", "-x", "s\n"]


@pytest.mark.parametrize("identity", BAD_IDS)
def test_an_id_that_is_no_name_of_a_file_is_dropped(tmp_path: Path, identity: str) -> None:
    messages = [
        range_of(identity, b"abc"),
        range_of("s", b"abc", agent=identity),
        range_of("s", b"abc", generation=identity),
        rows_of(1, row_of(identity, head=1), heads=b"\n"),
        rows_of(2, row_of("s", head=1, agent=identity), heads=b"\n"),
    ]
    courier = play(tmp_path, messages)
    assert files_in(tmp_path) == {}
    assert [one.reason for one in courier.dropped] == ["content"] * len(messages)


@pytest.mark.parametrize(
    "fields",
    [
        {"from": -1},
        {"from": 2**53 + 1},
        {"from": 1},
        {"to": 2},
        {"to": 2**63},
        {"size": 1},
        {"size": "3"},
        {"generation": "0"},
        {"agent": None},
    ],
)
def test_a_range_that_is_not_what_it_says_is_dropped(tmp_path: Path, fields: dict[str, Any]) -> None:
    courier = play(tmp_path, [range_of("s", b"abc", **fields)])
    assert (files_in(tmp_path), len(courier.dropped)) == ({}, 1)


def test_a_range_may_have_256_kilobytes_and_no_byte_more() -> None:
    assert not isinstance(read_span(range_of("s", b"x" * RANGE_BYTES)), Refused)
    assert isinstance(read_span(range_of("s", b"x" * (RANGE_BYTES + 1))), Refused)


def test_the_machine_that_has_signed_it_has_a_folder_of_its_own(tmp_path: Path) -> None:
    other = message("rec", "s", json.loads(range_of("s", b"abc").fields), b"abc", sender="moon")
    unknown = message("rec", "s", json.loads(range_of("s", b"abc").fields), b"abc", sender="venus")
    play(tmp_path, [range_of("s", b"of mars"), other, unknown])
    assert files_in(tmp_path) == {COPY_OF_S: b"of mars", COPY_OF_S.replace("mars", "moon"): b"abc"}


def test_generations_and_counters_at_their_ends_stop_only_that_session(tmp_path: Path) -> None:
    messages = [
        range_of("s", b"abc", generation=LAST),
        range_of("s", b"abc"),
        rows_of(2**53, row_of("s", generation=LAST, gone=True)),
        rows_of(1, row_of("u", head=1, updatedAt=2**53, size=2**53, key="k" * 1024), heads=b"\n"),
        rows_of(1, row_of("t", head=1), heads=b"\n"),
        range_of("t", b"\nmore"),
    ]
    play(tmp_path, messages)
    copies = {COPY_OF_S.replace("s.jsonl", f"{name}.jsonl"): data for name, data in (("t", b"\nmore"), ("u", b"\n"))}
    assert files_in(tmp_path) == copies


def test_a_machine_that_fills_its_part_stops_there(tmp_path: Path) -> None:
    messages = [range_of(f"s{number}", b"x" * 40) for number in range(5)]
    play(tmp_path, [*messages, rows_of(1, *(row_of(f"gone{n}", gone=True) for n in range(100)))], max_bytes=100)
    assert sum(map(len, files_in(tmp_path).values())) == 80


@pytest.mark.parametrize("limits", [{"max_bytes": 50}, {"max_sessions": 1}])
def test_what_finds_no_room_is_not_asked_for_again_and_again(tmp_path: Path, limits: dict[str, int]) -> None:
    asked: list[str] = []

    async def ask(question: str, fields: Any) -> PeerMessage:
        if isinstance(fields, CopyRequest):
            asked.append(fields.session)
        return message("rep", question, {})

    async def run() -> None:
        courier, states = HeldCourier(), CopyStates(tmp_path)
        reader = TranscriptReader(
            tmp_path,
            states,
            ["mars"],
            courier=courier,
            asks=lambda machine: ask,
            changed=lambda: None,
            wall_ms=lambda: 1,
            **{"free_bytes": 0, **limits},
        )
        running = asyncio.create_task(reader.run())
        head = b"a line of twenty-one\n"
        comes = [
            rows_of(1, row_of("s", size=500, head=len(head)), heads=head),
            range_of("s", b"x" * 100, len(head), size=500),
            rows_of(2, row_of("t", size=500, head=len(head)), heads=head),
            range_of("t", b"x" * 100, len(head), size=500),
        ]
        for number, one in enumerate(comes, 1):
            await courier.takers[one.kind](one, courier)
            await until(lambda number=number: courier.acknowledged == number)  # type: ignore[misc]
            await settle()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        states.close()

    run_until(run)
    assert asked == ["s"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ids = st.sampled_from(["s", "t", "../x", "", *BAD_IDS]) | st.text(max_size=10)
FIELDS = ["agent", "generation", "from", "to", "size", "session", "key", "updatedAt", "gone", "head"]
some_fields = st.dictionaries(st.sampled_from(FIELDS), values, max_size=3)


@given(
    parts=st.lists(
        st.one_of(
            st.builds(lambda identity, more: range_of(identity, b"abc", **more), ids, some_fields),
            st.builds(lambda n, rows, head: rows_of(n, *rows, heads=head), values, st.lists(some_fields), st.binary()),
            st.builds(lambda n, more: rows_of(n, row_of("s") | more, heads=b"x\n"), st.integers(0, 9), some_fields),
            st.builds(lambda kind, raw: message(kind, "s", raw, raw), st.sampled_from(["rec", "row"]), st.binary()),
        ),
        max_size=8,
    )
)
def test_no_message_ends_the_reader_or_reaches_another_folder(parts: list[PeerMessage]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        store.mkdir()
        play(store, parts)
        assert [path.name for path in Path(folder).iterdir()] == ["store"]
        assert {path.name for path in store.iterdir()} == {"link", "machines"}
        for name in files_in(store):
            assert name.startswith("machines/mars/agents/") and name.endswith(".jsonl") and ".." not in name


class AskedMachine:
    """What was asked of a machine; `size` is how long its sessions are."""

    def __init__(self) -> None:
        self.asked: list[CopyRequest] = []
        self.reply: dict[str, Any] = {}
        self.have: dict[str, tuple[str, int]] = {}
        self.came = asyncio.Event()

    async def ask(self, question: str, fields: Any) -> PeerMessage:
        if isinstance(fields, CopyRequest):
            self.asked.append(fields)
            self.came.set()
        return message("rep", question, self.reply)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.asked) < count:
                self.came.clear()
                await self.came.wait()


def with_asker(body: Callable[[AskedMachine, CopyAsker], Awaitable[None]]) -> None:
    async def run() -> None:
        machine = AskedMachine()
        asker = CopyAsker(
            "mars", machine.ask, have=lambda session: machine.have.get(session, ("", 0)), rows=RowsRequest
        )
        running = asyncio.create_task(asker.run())
        try:
            await body(machine, asker)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(run())


def test_the_newest_are_asked_for_first_and_each_once_at_a_time() -> None:
    async def body(machine: AskedMachine, asker: CopyAsker) -> None:
        for number in range(10):
            asker.want(Wanted(f"s{number}", G1, 100, updated_at=number))
            asker.want(Wanted(f"s{number}", G1, 100, updated_at=number))
        await machine.until(4)
        await asyncio.sleep(0)
        assert [one.session for one in machine.asked] == ["s9", "s8", "s7", "s6"]
        asker.note_written("s8", G1, 50, 100)
        asker.note_written("s8", G1, 100, 100)
        await machine.until(5)
        assert machine.asked[4].session == "s5"

    with_asker(body)


def test_a_long_session_is_asked_for_part_by_part_before_the_last_one_has_come() -> None:
    async def body(machine: AskedMachine, asker: CopyAsker) -> None:
        whole = 3 * ANSWER_BYTES
        asker.want(Wanted("s", G1, whole, 1))
        await machine.until(1)
        asker.note_written("s", G1, ANSWER_BYTES // 2 - 1, whole)
        await asyncio.sleep(0)
        assert len(machine.asked) == 1
        asker.note_written("s", G1, ANSWER_BYTES // 2, whole)
        await machine.until(2)
        assert machine.asked[1] == CopyRequest(session="s", generation=G1, have=ANSWER_BYTES)

    with_asker(body)


def test_a_copy_that_is_wrong_is_begun_anew_although_it_is_being_asked_for() -> None:
    async def body(machine: AskedMachine, asker: CopyAsker) -> None:
        asker.want(Wanted("s", G1, 100, 1))
        await machine.until(1)
        asker.want(Wanted("s", G1, 100, 2, "wrong"))
        asker.want(Wanted("s", G1, 120, 3))
        await machine.until(2)
        assert [one.wrong for one in machine.asked] == [False, True]

    with_asker(body)


def test_what_is_there_by_now_is_not_asked_for() -> None:
    async def body(machine: AskedMachine, asker: CopyAsker) -> None:
        machine.have = {"had": (G1, 100), "other": (G1, 100)}
        asker.want(Wanted("had", G1, 100, 9))
        asker.want(Wanted("other", G2, 50, 8))
        await machine.until(1)
        assert machine.asked == [CopyRequest(session="other", generation=G1, have=100)]

    with_asker(body)


def test_the_limits_that_a_machine_has_reached_are_told_when_they_change(tmp_path: Path) -> None:
    told: list[dict[str, str]] = []
    most = RANGE_BYTES + 10
    play(tmp_path, [range_of("s", b"0123456789")], told, max_bytes=most, max_sessions=3)
    assert told == [], "there is room for one more range"
    more = [range_of("s", b"a", 10), range_of("s", b"b", 11), rows_of(5, row_of("s", gone=True))]
    play(tmp_path, more, told, max_bytes=most, max_sessions=3)
    full = f"its copies have reached {most:,} bytes, the most that one machine may fill here; they do not grow any more"
    assert told == [{"mars": full}, {}]
    told.clear()
    begun = [range_of(name, b"x") for name in ("t", "u", "v", "w")]
    play(tmp_path, begun, told, max_bytes=most, max_sessions=3)
    known = "3 of its sessions are known here, the most that may be; no others are copied"
    assert told == [{"mars": known}]
    assert sorted(name[-7:] for name in files_in(tmp_path)) == ["t.jsonl", "u.jsonl", "v.jsonl"], (
        "s gave way, w did not"
    )


@pytest.mark.parametrize("count", [10, 11, 1000])
@pytest.mark.parametrize("has_heads", [True, False])
def test_of_a_machine_with_more_sessions_than_it_may_have_no_more_are_copied_or_asked_for(
    tmp_path: Path, count: int, has_heads: bool
) -> None:
    limit, told = 10, list[dict[str, str]]()
    machine = AskedMachine()
    machine.reply = {"gone": True}
    head = b"{}\n" if has_heads else b""
    rows = [row_of(f"s{number}", size=9, head=len(head)) for number in range(count)]
    parts = [rows[at : at + MAX_ROWS] for at in range(0, count, MAX_ROWS)]
    messages = [rows_of(5 + at, *part, heads=head * len(part)) for at, part in enumerate(parts)]
    if not has_heads:
        messages = [range_of(f"s{number}", b"{}\n") for number in range(limit)] + messages
    messages += [range_of(f"s{number}", b"x", number % 2) for number in range(limit, count)]
    messages.append(message("rec", "one", range_of("one", b"1").fields, b"1", "moon"))
    courier = play(tmp_path, messages, told, ask=machine.ask, max_sessions=limit)
    found = files_in(tmp_path)
    assert len([name for name in found if name.startswith("machines/mars/")]) == limit
    assert found["machines/moon/agents/ops/sessions/one.jsonl"] == b"1", "another machine is not concerned"
    assert {one.session for one in machine.asked} <= {f"s{number}" for number in range(limit)}
    assert courier.dropped == []
    assert told == [{"mars": f"{limit} of its sessions are known here, the most that may be; no others are copied"}]
