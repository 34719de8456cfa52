"""Sessions that are no file of lines: compressed rollouts of Codex, documents of older versions of Gemini CLI."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.foreign_sessions import UUID, followed_sources, shown_messages
from support.rows import check_each
from support.source_files import GOLDEN

from sessiond.errors import Unsupported
from sessiond.model.decoding_cost import MAX_VALUES
from sessiond.model.event import ResyncEvent
from sessiond.sessions import search
from sessiond.sources import unpacking
from sessiond.sources.unpacked_files import UnpackedFiles
from sessiond.store import dirfd

ROLLOUT = GOLDEN / "codex" / "0.169.0" / "tools.jsonl"
CHAT = GOLDEN / "gemini" / "tool.jsonl"
ID = UUID.format(1)
CODEX, GEMINI = f"codex:{ID}", f"gemini:{ID}"


def rollout_path(home: Path, suffix: str = ".jsonl.zst") -> Path:
    path = home / ".codex" / "sessions" / "2026" / "01" / "02" / f"rollout-2026-01-02T03-04-05-{ID}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def chat_path(home: Path) -> Path:
    path = home / ".gemini" / "tmp" / "work" / "chats" / f"session-2025-11-02T03-04-{ID[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def golden_document(**more: Any) -> dict[str, Any]:
    """The golden chat as an older version writes it: its messages in their last form."""
    members: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for line in map(json.loads, CHAT.read_bytes().splitlines()):
        messages |= {one["id"]: one for one in line.get("$set", {}).get("messages", ())}
        if "id" in line:
            messages[line["id"]] = line
        elif "sessionId" in line:
            members = line
    return members | {"sessionId": ID, "messages": list(messages.values())} | more


def said(number: int, text: str, kind: str = "user") -> dict[str, Any]:
    return {"id": f"m{number}", "timestamp": "2025-11-02T03:04:05.000Z", "type": kind, "content": text}


def write_chat(home: Path, document: dict[str, Any]) -> Path:
    path = chat_path(home)
    path.write_text(json.dumps(document, indent=2))
    return path


async def test_a_compressed_rollout_has_the_row_and_history_of_the_rollout(tmp_path: Path, home: Path) -> None:
    plain = rollout_path(home, ".jsonl")
    plain.write_bytes(ROLLOUT.read_bytes())
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        expected = await followed.read_history(CODEX)
        entry = followed.parts.session(CODEX).entry
        assert len(expected) >= 3
        # As Codex does it with old ones; the file before keeps its time.
        packed, stamp = rollout_path(home), plain.stat().st_mtime_ns
        packed.with_suffix(".part").write_bytes(zstandard.compress(plain.read_bytes()))
        os.utime(packed.with_suffix(".part"), ns=(stamp, stamp))
        packed.with_suffix(".part").rename(packed)
        plain.unlink()
        await followed.wait_until(lambda: followed.keys and followed.parts.session(CODEX).path == str(packed))
        await followed.wait_whole()
        assert await followed.read_history(CODEX) == expected
        now = followed.parts.session(CODEX).entry
        assert (now.message_count, now.source, now.cwd) == (entry.message_count, entry.source, entry.cwd)
        assert followed.complaints(named=False) == []
        query = search.Query(text=expected[-1].partition(": ")[2][:20], limit=9, shown=lambda text: text)
        looking = search.Search(followed.parts.store, [followed.parts.session(CODEX)], query)
        for _ in looking.steps():
            pass
        assert [match.role for match in looking.matches()][:1] == ["assistant"]
    async with followed_sources(tmp_path, home) as followed:
        assert not followed.parts.session(CODEX).is_partial, "the snapshot has it"
        assert await followed.read_history(CODEX) == expected


async def test_without_the_package_a_compressed_rollout_is_listed_and_reading_it_names_the_package(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout_path(home).write_bytes(zstandard.compress(ROLLOUT.read_bytes()))
    monkeypatch.setitem(sys.modules, "zstandard", None)  # as where it is not installed
    async with followed_sources(tmp_path, home) as followed:
        session = followed.parts.session(CODEX)
        assert session.is_partial
        with pytest.raises(Unsupported, match=r"zstandard.*sessiond\[zst\]") as refused:
            await followed.sources.complete(session)
        assert refused.value.data["package"] == "zstandard"
        assert followed.complaints(named=False) == ["of 1 compressed session only the name is shown"]
        os.utime(rollout_path(home), (1, 1))
        monkeypatch.undo()
        await followed.sources.complete(session)
        assert session.entry.message_count > 0
    monkeypatch.setitem(sys.modules, "zstandard", None)
    async with followed_sources(tmp_path, home) as followed:
        session = followed.parts.session(CODEX)
        assert not session.is_partial, "as it was read with the package"
        with pytest.raises(Unsupported, match="zstandard"):
            await followed.sources.complete(session)


@check_each(
    ("data", "reason"),
    [
        (b"no zstd data" * 20, "it cannot be unpacked: it is no zstd data, or damaged"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 200, "it cannot be unpacked: it is no zstd data, or damaged"),
        (zstandard.compress(ROLLOUT.read_bytes())[:-30], "it cannot be unpacked: its end is missing"),
        (zstandard.compress(b"\n" * (unpacking.MOST_UNPACKED_BYTES + 1)), "unpacked it is longer than 64 MiB"),
    ],
)
async def test_a_compressed_rollout_that_cannot_be_unpacked_costs_its_own_row(
    tmp_path: Path, home: Path, data: bytes, reason: str
) -> None:
    path = rollout_path(home)
    path.write_bytes(data)
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_until(lambda: followed.complaints(named=False) == [f"not all of it is shown: {reason}"])
        assert followed.keys == {CODEX}
        path.write_bytes(zstandard.compress(ROLLOUT.read_bytes()))
        await followed.wait_whole()
        assert followed.complaints(named=False) == []
        assert len(await followed.read_history(CODEX)) >= 3


def test_frames_one_after_the_other_are_one_file_and_the_limit_is_the_limit(tmp_path: Path) -> None:
    lines = ROLLOUT.read_bytes().splitlines(keepends=True)
    pieces = {
        "frames.zst": b"".join(map(zstandard.compress, lines)),
        "longest.zst": zstandard.compress(b"\n" * unpacking.MOST_UNPACKED_BYTES),
    }
    for name, data in pieces.items():
        (tmp_path / name).write_bytes(data)
    with dirfd.closing(dirfd.open_root(tmp_path)) as root, closing(UnpackedFiles(root)) as files:
        with dirfd.closing(files.open("frames.zst")) as fd:
            assert os.pread(fd, 2**20, 0) == b"".join(lines)
        status = files.status("longest.zst")
        assert status.st_size == unpacking.MOST_UNPACKED_BYTES
        assert status.st_mtime_ns == (tmp_path / "longest.zst").stat().st_mtime_ns


async def test_a_document_has_the_history_of_the_lines_that_the_program_makes_of_it(tmp_path: Path, home: Path) -> None:
    path = write_chat(home, golden_document(summary="What it was about"))
    path.with_suffix(".part").write_text("")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        expected = await followed.read_history(GEMINI)
        session = followed.parts.session(GEMINI)
        assert session.path == str(path)
        assert session.entry.source is not None and session.entry.source.title == "What it was about"
        assert (len(expected), expected[0][:5]) == (4, "user:"), expected
        # Gone on with, the session has a file of lines beside it, which is newer.
        os.utime(path, (1, 1))
        lines = path.with_suffix(".jsonl")
        head, *messages = golden_document(), *golden_document()["messages"]
        del head["messages"]
        lines.write_text("".join(json.dumps(one) + "\n" for one in (head, *messages, said(9, "and more"))))
        await followed.wait_until(lambda: followed.keys and followed.parts.session(GEMINI).path == str(lines))
        await followed.wait_until(lambda: followed.parts.session(GEMINI).entry.message_count == len(expected) + 1)
        assert await followed.read_history(GEMINI) == [*expected, "user: and more"]


async def test_what_is_added_to_a_document_is_published_and_what_is_changed_in_it_is_read_anew(
    tmp_path: Path, home: Path
) -> None:
    def write(*texts: str) -> None:
        messages = [said(number, text) for number, text in enumerate(texts)]
        stamp = f"2025-11-02T03:04:{len(texts):02}.000Z"
        write_chat(home, {"sessionId": ID, "projectHash": "h", "lastUpdated": stamp, "messages": messages})

    write("one")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        _, reader = followed.parts.follow(GEMINI)
        write("one", "two")
        await reader.wait_until(lambda: shown_messages(reader) == [(2, "user: two")])
        chat_path(home).write_text('{"sessionId": "' + ID + '", "messages": [{"id":')
        await followed.wait_until(lambda: followed.complaints(named=False) != [])
        assert followed.complaints(named=False) == [
            "not all of it is shown: it is no chat of Gemini CLI, or only a part of one"
        ]
        write("one", "two", "three")
        await reader.wait_until(lambda: shown_messages(reader) == [(2, "user: two"), (3, "user: three")])
        assert followed.complaints(named=False) == []
        write("one", "another two", "three")
        await reader.wait_until(lambda: any(isinstance(event, ResyncEvent) for event in reader.events))
        await followed.wait_until(lambda: followed.parts.session(GEMINI).entry.message_count == 3)
        assert await followed.read_history(GEMINI) == ["user: one", "user: another two", "user: three"]


async def test_packed_files_are_kept_as_they_are(tmp_path: Path, home: Path) -> None:
    chat = write_chat(home, golden_document())
    rollout_path(home).write_bytes(zstandard.compress(ROLLOUT.read_bytes()))
    async with followed_sources(tmp_path, home, config="[sources]\nkeep = true\n") as followed:
        await followed.wait_whole()
        kept = [tmp_path / "store" / "kept" / name for name in (f"gemini/{ID}.json", f"codex/{ID}.jsonl.zst")]
        await followed.wait_until(lambda: all(path.exists() for path in kept))
        before = [await followed.read_history(key) for key in (GEMINI, CODEX)]
        chat.unlink()
        rollout_path(home).unlink()
        paths = {str(path) for path in kept}
        catalog = followed.parts.store.catalog
        await followed.wait_until(lambda: {one.path for one in catalog.foreign.values()} == paths)
        assert [await followed.read_history(key) for key in (GEMINI, CODEX)] == before


def read_all(files: UnpackedFiles, place: str) -> tuple[bytes, OSError | None]:
    """What a file has when it is opened, and the error if it cannot be."""
    try:
        fd = files.open(place)
    except OSError as error:
        return b"", error
    with dirfd.closing(fd):
        return os.pread(fd, 2**20, 0), None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_DOCUMENTS = st.fixed_dictionaries(
    {"sessionId": _JSON, "messages": _JSON | st.lists(_JSON, max_size=4)}, optional={"summary": _JSON, "more": _JSON}
)


@given(
    data=st.binary(max_size=300)
    | st.builds(lambda value: json.dumps(value, indent=2).encode(), _JSON | _DOCUMENTS)
    | st.builds(lambda data, cut: zstandard.compress(data)[cut:], st.binary(max_size=200), st.integers(0, 12)),
    suffix=st.sampled_from([".json", ".jsonl.zst"]),
)
def test_any_bytes_are_lines_or_an_error_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "packed"
    folder.mkdir(exist_ok=True)
    (folder / f"x{suffix}").write_bytes(data)
    with dirfd.closing(dirfd.open_root(folder)) as root, closing(UnpackedFiles(root)) as files:
        text, refusal = read_all(files, f"x{suffix}")
    if refusal is not None:
        assert refusal.strerror and not dirfd.is_passing(refusal)
    elif suffix == ".json":
        document = json.loads(data)
        lines = text.splitlines()
        messages = document.get("messages")
        count = len(messages) if isinstance(messages, list) else 0
        assert len(lines) == 1 + count + ("summary" in document)
        assert text.endswith(b"\n") and b"\r" not in text
        assert [json.loads(line) for line in lines[1 : 1 + count]] == (messages if count else [])


def test_a_document_with_too_many_values_is_refused_undecoded(tmp_path: Path) -> None:
    for number, zeros in enumerate((MAX_VALUES - 4, MAX_VALUES)):
        document = b'{"sessionId":"x","messages":[' + b"0," * zeros + b"0]}"
        (tmp_path / f"{number}.json").write_bytes(document)
    with dirfd.closing(dirfd.open_root(tmp_path)) as root, closing(UnpackedFiles(root)) as files:
        assert read_all(files, "0.json")[1] is None
        refusal = read_all(files, "1.json")[1]
    assert refusal is not None and refusal.strerror == f"it is a document with more than {MAX_VALUES} values"
