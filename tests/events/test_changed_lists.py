"""What another program takes back in its list of messages reaches the followers as a resync, and the list as it is."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import trio
from support.followed_store import FollowedStore, Reader, append
from support.foreign_file import ForeignFile, foreign_file
from support.patience import PATIENCE_S

from sessiond.events import replay_page
from sessiond.events.subscription import FollowPlace
from sessiond.model.dialects import DIALECTS
from sessiond.model.event import MessageEvent, ResyncEvent
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import SourceFacts
from sessiond.sessions import history, search

GEMINI = DIALECTS["gemini"]


def user(key: str, text: str) -> bytes:
    return json.dumps({"id": key, "type": "user", "content": text}).encode() + b"\n"


def answer(key: str, text: str, *results: str) -> bytes:
    calls = [
        {"id": f"{key}{place}", "name": "ls", "status": "success", "result": result}
        for place, result in enumerate(results)
    ]
    return json.dumps({"id": key, "type": "gemini", "content": text, "toolCalls": calls}).encode() + b"\n"


def rewind(key: str) -> bytes:
    return json.dumps({"$rewindTo": key}).encode() + b"\n"


def changed_file(tmp_path: Path) -> AbstractAsyncContextManager[tuple[FollowedStore, ForeignFile]]:
    entry = begin_foreign(SourceFacts(name="gemini"), "native-1")
    return foreign_file(tmp_path, user("u1", "go"), entry, GEMINI)


def text_of_message(message: bytes | msgspec.Raw) -> str:
    content = msgspec.json.decode(message)["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


def shown(reader: Reader) -> list[tuple[int, str] | str]:
    return [
        (event.seq, text_of_message(event.message)) if isinstance(event, MessageEvent) else event.reason
        for event in reader.events
        if isinstance(event, MessageEvent | ResyncEvent)
    ]


def find(parts: FollowedStore, file: ForeignFile, text: str, role: str | None = None) -> list[tuple[str, int]]:
    """The role and the number of each match."""
    query = search.Query(text=text, limit=9, shown=lambda text: text, role=role)
    looking = search.Search(parts.store, [file.session], query)
    for _ in looking.steps():
        pass
    return [(match.role, match.listed) for match in looking.matches()]


async def test_results_in_the_line_of_their_call_are_messages_and_a_repeated_answer_keeps_its_number(
    tmp_path: Path,
) -> None:
    async with changed_file(tmp_path) as (parts, file):
        _, reader = parts.follow(file.session.key)
        file.write(answer("g1", "looking"))
        file.write(answer("g1", "looking", "a", "b"), user("u2", "on"))
        assert shown(reader) == [(2, "looking"), (2, "looking"), (3, "a"), (4, "b"), (5, "on")]
        within = parts.store.position(file.session, reader.events[2].cursor)  # type: ignore[union-attr]
        assert within is not None
        subscription, later = parts.follow(
            file.session.key, place=FollowPlace(file.session.session_id, within.offset, within.seq)
        )
        await parts.wait_until_caught_up(subscription)
        assert shown(later) == [(4, "b"), (5, "on")]


async def test_a_rewind_is_a_resync_for_those_who_follow_and_for_those_who_come_back(tmp_path: Path) -> None:
    async with changed_file(tmp_path) as (parts, file):
        subscription, reader = parts.follow(file.session.key)
        file.write(answer("g1", "one"), user("u2", "two"), answer("g2", "three"))
        before = file.place
        file.write(rewind("u2"), user("u3", "instead"))
        await parts.wait_until_caught_up(subscription)
        as_it_is: list[tuple[int, str] | str] = [(1, "go"), (2, "one"), (3, "instead")]
        assert shown(reader)[3:] == ["rewritten", *as_it_is]
        later, again = parts.follow(file.session.key, place=before)
        await parts.wait_until_caught_up(later)
        assert shown(again) == ["rewritten", *as_it_is]
        assert file.session.entry.message_count == 3


async def test_history_and_search_show_only_what_is_in_the_list(tmp_path: Path) -> None:
    async with changed_file(tmp_path) as (parts, file):
        file.write(answer("g1", "bird one", "bird two"), user("u2", "bird gone"), rewind("u2"), user("u3", "end"))
        page = await history.page(parts.store, file.session, limit=2, include_tools=True, max_bytes=9999)
        assert [text_of_message(message) for message in page.messages] == ["bird two", "end"]
        assert [position.seq for position in page.positions] == [3, 4]
        older = await history.page(
            parts.store, file.session, limit=9, include_tools=True, max_bytes=9999, before=page.next_cursor
        )
        assert [text_of_message(message) for message in older.messages] == ["go", "bird one"]
        assert find(parts, file, "bird") == [("toolResult", 3), ("assistant", 2)]
        assert find(parts, file, "bird two") == [("toolResult", 3)]
        assert find(parts, file, "bird", role="toolResult") == [("toolResult", 3)]
        assert find(parts, file, "bird gone") == []


async def test_an_older_message_that_is_replaced_is_a_resync(tmp_path: Path) -> None:
    async with changed_file(tmp_path) as (parts, file):
        subscription, reader = parts.follow(file.session.key)
        file.write(answer("g1", "one"), user("u2", "two"))
        file.write(answer("g1", "late"))
        with trio.fail_after(PATIENCE_S):
            await parts.wait_until_caught_up(subscription)
        assert shown(reader)[2:] == ["rewritten", (1, "go"), (3, "two"), (2, "late")]


async def test_a_long_list_is_replayed_in_pages(tmp_path: Path) -> None:
    async with changed_file(tmp_path) as (parts, file):
        texts = [str(number) for number in range(2 * replay_page.PAGE_LINES)]
        append(file.path, b"".join(user(f"k{text}", text) for text in texts) + rewind("k500") + user("end", "end"))
        while file.session.entry.file.folded_to < file.path.stat().st_size:
            file.write()
        subscription, reader = parts.follow(file.session.key, place=FollowPlace(file.session.session_id, 0, 0))
        await parts.wait_until_caught_up(subscription)
        assert shown(reader) == list(enumerate(["go", *texts[:500], "end"], 1))


async def test_a_search_reads_a_long_list_in_short_steps(tmp_path: Path) -> None:
    async with changed_file(tmp_path) as (parts, file):
        for number in range(2, 2000, 10):
            file.write(*(user(f"u{one}", f"bird {one}") for one in range(number, number + 10)))
        query = search.Query(text="bird 1999", limit=9, shown=lambda text: text)
        looking = search.Search(parts.store, [file.session], query)
        assert sum(1 for _ in looking.steps()) > 100
        assert [match.listed for match in looking.matches()] == [1999]
