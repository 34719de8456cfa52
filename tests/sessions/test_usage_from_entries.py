"""Usage from the entries is the same as from all that the transcripts say, however they are copied and continued."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sampling import amount

from sessiond.clock import iso_ms
from sessiond.config.settings import Price
from sessiond.model.dialects import DIALECTS, V3
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import SourceFacts
from sessiond.model.usage_rows import DAY_MS, MAX_RECENT, MAX_ROWS
from sessiond.sessions.usage import UsageCount, find_used
from sessiond.store import folding
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder

LIMIT = 8 * 2**20
T = 1_795_305_600_000  # a midnight, UTC
PRICING = {"priced": Price(input=1.0, output=2.0)}
_encode = msgspec.json.encode


class Used(NamedTuple):
    """One answer: how its last line says what it used. The lines before say less."""

    id: str
    at_ms: int
    model: str
    input: int
    output: int
    lines: int = 1
    compacts: bool = False


def claude_lines(used: Used) -> list[bytes]:
    lines: list[Any] = [{"type": "system", "subtype": "compact_boundary"}] if used.compacts else []
    for number in range(used.lines):
        usage = {"input_tokens": used.input, "output_tokens": used.output * (number + 1) // used.lines}
        message = {"id": used.id, "role": "assistant", "model": used.model, "usage": usage}
        message["content"] = [{"type": "text", "text": "x"}]
        stamp = iso_ms(used.at_ms - (used.lines - 1 - number))
        lines.append({"type": "assistant", "uuid": f"{used.id}-{number}", "timestamp": stamp, "message": message})
    return [_encode(line) for line in lines]


def codex_lines(used: Used) -> list[bytes]:
    usage = {"input_tokens": used.input, "output_tokens": used.output, "total_tokens": used.input + used.output}
    info = {"total_token_usage": {"total_tokens": used.at_ms - T}, "last_token_usage": usage}
    lines: list[tuple[str, Any]] = [("compacted", {})] if used.compacts else []
    lines += [("turn_context", {"model": used.model}), ("token_usage_record", {"usage": usage, "response_id": used.id})]
    lines += [("event_msg", {"type": "token_count", "info": info})] * used.lines
    return [_encode({"type": kind, "timestamp": iso_ms(used.at_ms), "payload": more}) for kind, more in lines]


def pi_lines(used: Used) -> list[bytes]:
    usage = {"input": used.input, "output": used.output, "totalTokens": used.input + used.output}
    message = {"role": "assistant", "content": [], "model": used.model, "usage": usage}
    record = {"type": "message", "id": used.id, "timestamp": iso_ms(used.at_ms), "message": message}
    return [_encode({"type": "compaction", "id": "c"})] * used.compacts + [_encode(record)] * used.lines


LINES = {"claude": claude_lines, "codex": codex_lines, "pi": pi_lines, "v3": pi_lines}


class Store:
    """A folder of transcripts."""

    def __init__(self, path: Path) -> None:
        self.path, self.sessions = path, list[Session]()

    def add(self, program: str, name: str, lines: Sequence[bytes]) -> Session:
        (self.path / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        is_own = program == "v3"
        dialect = V3 if is_own else DIALECTS[program]
        folder = Folder("main" if is_own else "", os.open(self.path, os.O_RDONLY), dialect)
        entry = Entry(session_id=name) if is_own else begin_foreign(SourceFacts(name=program), name)
        entry = folding.advance(folder.fd, entry, f"{name}.jsonl", LIMIT, dialect=dialect).entry
        # As if it was loaded from the index.
        entry = msgspec.json.decode(_encode(entry), type=Entry)
        self.sessions.append(Session(key=entry.session_key or f"agent:main:{name}", entry=entry, folder=folder))
        return self.sessions[-1]

    def count(self, **more: Any) -> UsageCount:
        found = UsageCount(LIMIT, PRICING, **more)
        for _ in chain(found.steps(find_used(self.sessions)), found.reading_steps()):
            pass
        return found

    def close(self) -> None:
        for session in self.sessions:
            os.close(session.folder.fd)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path)
    yield made
    made.close()


Sums = dict[str, dict[str, tuple[int, int]]]


def count_read(found: UsageCount) -> int:
    """How many sessions were read."""
    return sum(map(len, found.to_read))


def sums_of(found: UsageCount) -> Sums:
    names = {"model": found.by_model, "day": found.by_day}
    return {
        by: {name: (one.input_tokens, one.output_tokens) for name, one in sums.items()} for by, sums in names.items()
    }


def expected_sums(files: Sequence[Sequence[Used]], since: int, until: int) -> Sums:
    """Every answer once, however many files have it."""
    answers = {used.id: used for file in files for used in file}
    sums: dict[str, dict[str, tuple[int, int]]] = {"model": {}, "day": {}}
    for used in answers.values():
        if since <= used.at_ms < until:
            for by, name in (("model", used.model), ("day", iso_ms(used.at_ms)[:10])):
                had = sums[by].get(name, (0, 0))
                sums[by][name] = had[0] + used.input, had[1] + used.output
    return sums


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Used]]:
    """Files of one program: conversations, and copies of others from the beginning, or from a summary on, to some
    place, which go on by themselves.
    """
    files: list[list[Used]] = []
    number = 0
    for _ in range(draw(st.integers(1, 5))):
        file: list[Used] = []
        if files and draw(st.booleans()):
            origin = draw(st.sampled_from(files))
            begins = [0, *(place for place, used in enumerate(origin) if used.compacts)]
            begin = draw(st.sampled_from(begins))
            file = list(origin[begin : draw(st.integers(begin + 1, len(origin)))])
        at_ms = file[-1].at_ms if file else T
        for _ in range(draw(st.integers(0 if file else 1, 12))):
            at_ms += draw(st.sampled_from([1000, 60_000, DAY_MS // 2, 3 * DAY_MS]))
            number += 1
            file.append(
                Used(
                    f"id{number}",
                    at_ms,
                    draw(st.sampled_from(["m", "n", "priced"])),
                    draw(st.integers(1, 9)),
                    draw(st.integers(3, 99)),
                    draw(st.integers(1, 3)),
                    draw(st.integers(0, 5)) == 0 and bool(file),
                )
            )
        files.append(file)
    return files


@settings(max_examples=amount(400, 15), deadline=None)
@given(st.sampled_from(sorted(LINES)), conversations(), st.data())
def test_every_answer_counts_once_over_all_files_at_any_time(program, files, data):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for number, file in enumerate(files):
            store.add(program, f"s{number}", [line for used in file for line in LINES[program](used)])
        moments = [T, 2**60, *(used.at_ms + off for file in files for used in file for off in (0, 1))]
        since, until = sorted((data.draw(st.sampled_from(moments)), data.draw(st.sampled_from(moments))))
        try:
            assert sums_of(store.count()) == expected_sums(files, 0, 2**60)
            assert sums_of(store.count(since_ms=since, until_ms=until)) == expected_sums(files, since, until)
        finally:
            store.close()


@settings(max_examples=amount(200, 8), deadline=None)
@given(st.lists(st.tuples(st.integers(0, MAX_RECENT - 1), st.integers(1, 50)), min_size=1, max_size=40))
def test_lines_of_agents_side_by_side_count_once_an_answer(steps):
    """Each agent goes on with its answer, or begins the next one; each line says more than the one before."""
    said: dict[str, int] = {}
    lines, numbers = [], defaultdict[int, int](int)
    for at, (agent, more) in enumerate(steps):
        numbers[agent] += more > 40
        name = f"a{agent}-{numbers[agent]}"
        said[name] = said.get(name, 0) + more
        lines += claude_lines(Used(name, T + at, "m", 1, said[name]))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.add("claude", "s", lines)
        try:
            assert store.count().totals.output_tokens == sum(said.values())
        finally:
            store.close()


def test_no_file_is_read_for_sessions_that_have_nothing_in_common(store: Store) -> None:
    for number in range(20):
        file = [Used(f"{number}-{place}", T + place * DAY_MS // 3, "m", 1, 1, 2) for place in range(30)]
        store.add("claude", f"s{number}", [line for used in file for line in claude_lines(used)])
    for session in store.sessions:
        (store.path / session.file_name).unlink()
    found = store.count()
    assert (found.totals.output_tokens, count_read(found)) == (600, 0)
    # On whole days nothing is read either; within a day those that were used before and after.
    assert (store.count(since_ms=T + DAY_MS).totals.output_tokens, count_read(store.count())) == (540, 0)
    assert count_read(store.count(since_ms=T + DAY_MS // 2)) == 20


def test_only_families_are_read_and_only_once_until_they_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [Used(f"a{place}", T + place, "m", 1, 1) for place in range(5)]
    store.add("claude", "s1", [line for used in first for line in claude_lines(used)])
    store.add("claude", "s2", [line for used in first[:3] for line in claude_lines(used)] + claude_lines(
        Used("b", T + 9, "m", 1, 100)
    ))  # fmt: skip
    alone = store.add("claude", "s3", claude_lines(Used("c", T, "m", 1, 1000)))
    (store.path / alone.file_name).unlink()
    for _ in range(2):
        found = store.count()
        assert (found.totals.output_tokens, count_read(found)) == (1105, 2)
        assert {one.session_id: used.output_tokens for one, used in found.by_session.items()} == {
            "s1": 5, "s2": 100, "s3": 1000,
        }  # fmt: skip
        # What was read is kept.
        for session in store.sessions[:2]:
            (store.path / session.file_name).unlink(missing_ok=True)
    assert count_read(store.count(since_ms=T + 10)) == 0


def test_a_copy_of_all_behind_it_in_the_same_file_counts_once(store: Store) -> None:
    file = [Used(f"a{place}", T + place, "m", 1, 1) for place in range(3 * MAX_RECENT)]
    lines = [line for used in file for line in claude_lines(used)]
    store.add("claude", "s", lines * 2)
    found = store.count()
    assert (found.totals.output_tokens, count_read(found)) == (3 * MAX_RECENT, 1)


def test_an_answer_that_is_repeated_long_after_it_counts_once(store: Store) -> None:
    file = [Used(f"a{place}", T + place, "m", 1, 1) for place in range(5 * MAX_RECENT)]
    file += [Used("a7", T + 7, "m", 1, 1)]
    store.add("claude", "s", [line for used in file for line in claude_lines(used)])
    found = store.count()
    assert (found.totals.output_tokens, count_read(found)) == (5 * MAX_RECENT, 1)


def test_a_session_of_more_days_than_an_entry_keeps_is_read_where_the_older_count(store: Store) -> None:
    file = [Used(f"a{day}", T + day * DAY_MS, "m", 1, 1) for day in range(MAX_ROWS + 10)]
    store.add("v3", "s", [line for used in file for line in pi_lines(used)])
    found = store.count()
    assert (found.totals.output_tokens, len(found.by_day), count_read(found)) == (MAX_ROWS + 10, MAX_ROWS + 10, 1)
    found = store.count(since_ms=T + 10 * DAY_MS)
    assert (found.totals.output_tokens, count_read(found)) == (MAX_ROWS, 0)
    assert store.count(since_ms=T + 9 * DAY_MS).totals.output_tokens == MAX_ROWS + 1


def test_a_copy_that_is_dated_later_counts_for_the_day_of_its_original(store: Store) -> None:
    lines = codex_lines(Used("r1", T, "m", 1, 1))
    store.add("codex", "s1", lines)
    store.add("codex", "s2", [line.replace(iso_ms(T).encode(), iso_ms(T + 5 * DAY_MS).encode()) for line in lines])
    assert list(store.count().by_day) == [iso_ms(T)[:10]]
    assert store.count(since_ms=T + DAY_MS).totals.output_tokens == 0


def cost_line(**models: float) -> bytes:
    usage = {model: {"costUSD": cost} for model, cost in models.items()}
    return _encode({"type": "cost-state", "totalCostUSD": sum(models.values()), "modelUsage": usage})


def test_what_the_program_says_last_of_the_cost_is_the_cost(store: Store) -> None:
    lines = [*claude_lines(Used("a", T, "m", 1, 1)), cost_line(m=0.5)]
    lines += [
        *claude_lines(Used("b", T + DAY_MS, "priced", 1, 1)),
        cost_line(m=0.5, priced=2.0),
        cost_line(m=0.5, priced=2.0),
    ]
    store.add("claude", "s1", lines)
    found = store.count()
    assert (found.totals.cost_usd, found.totals.output_tokens, count_read(found)) == (2.5, 2, 0)
    assert {model: one.cost_usd for model, one in found.by_model.items()} == {"m": 0.5, "priced": 2.0}
    assert [one.cost_usd for one in found.by_day.values()] == [0.5, 2.0]


def test_a_fork_does_not_cost_again_what_its_original_had_cost(store: Store) -> None:
    one, two, three = (claude_lines(Used(name, T + at, "m", 1, 1)) for at, name in enumerate("abc"))
    store.add(
        "claude", "s1", [*one, cost_line(m=1.0), *two, cost_line(m=3.0), cost_line(m=4.0), *three, cost_line(m=8.0)]
    )
    store.add("claude", "s2", [*one, *two, *claude_lines(Used("d", T + 9, "m", 1, 1)), cost_line(m=19.0)])
    found = store.count()
    assert {session.session_id: used.cost_usd for session, used in found.by_session.items()} == {"s1": 8.0, "s2": 16.0}
    assert found.totals.cost_usd == 24.0


def test_a_copy_of_which_nobody_says_what_was_copied_costs_what_came_after_it(store: Store) -> None:
    one = claude_lines(Used("a", T, "m", 1, 1))
    store.add("claude", "s1", one)
    later = claude_lines(Used("d", T + 9, "m", 1, 1))
    store.add("claude", "s2", [*one, cost_line(m=19.0), *later, cost_line(m=21.0)])
    assert store.count().totals.cost_usd == 2.0


def test_subagents_of_a_session_that_says_its_cost_have_no_price(store: Store) -> None:
    store.add("claude", "s1", [*claude_lines(Used("a", T, "priced", 1, 1)), cost_line(priced=1.0)])
    agent = store.add("claude", "agent-1", claude_lines(Used("b", T, "priced", 10**6, 1)))
    assert store.count().totals.cost_usd == pytest.approx(2.000002)
    agent.entry = msgspec.structs.replace(agent.entry, spawned_by="claude:s1")
    assert store.count().totals.cost_usd == 1.0
