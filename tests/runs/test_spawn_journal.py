"""The spawn journal: notes exist while a spawn is being written, and after a crash show what was unfinished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from faults.record import record

from sessiond.errors import StorageError
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.store.catalog import Catalog
from sessiond.store.store import SessionStore

ID = "11111111-1111-4111-8111-111111111111"


class StoreRoot:
    """The only part of a store that the journal uses."""

    def __init__(self, root_fd: int) -> None:
        self.root_fd = root_fd


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SpawnJournal]:
    root_fd = os.open(tmp_path, os.O_RDONLY)
    yield SpawnJournal(cast(SessionStore, StoreRoot(root_fd)))
    os.close(root_fd)


def test_a_note_exists_until_its_spawn_is_complete(journal: SpawnJournal, tmp_path: Path) -> None:
    assert journal.unfinished_notes() == []
    journal.begin("main", ID)
    assert journal.unfinished_notes() == [("main", ID, "")]
    file = tmp_path / "spawning" / ID
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("main\n", 0o600)
    assert (tmp_path / "spawning").stat().st_mode & 0o777 == 0o700
    journal.complete(ID)
    journal.complete(ID)
    assert (journal.unfinished_notes(), file.exists()) == ([], False)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"../../etc\n", b"x" * 4096, b"a:b\n", b"main", b"main 3333"])
def test_a_note_that_names_no_agent_is_removed(journal: SpawnJournal, tmp_path: Path, content: bytes) -> None:
    journal.begin("main", ID)
    (tmp_path / "spawning" / ID).write_bytes(content)
    assert journal.unfinished_notes() == []
    assert list((tmp_path / "spawning").iterdir()) == []


def test_files_that_are_no_notes_are_ignored_and_kept(journal: SpawnJournal, tmp_path: Path) -> None:
    journal.begin("main", ID)
    (tmp_path / "spawning" / "notes.txt").write_text("mine")
    assert journal.unfinished_notes() == [("main", ID, "")]
    assert (tmp_path / "spawning" / "notes.txt").read_text() == "mine"


def test_a_link_in_place_of_a_note_is_removed_and_not_followed(journal: SpawnJournal, tmp_path: Path) -> None:
    journal.begin("main", ID)
    journal.complete(ID)
    (tmp_path / "agent").write_text("main")
    link = tmp_path / "spawning" / ID
    link.symlink_to(tmp_path / "agent")
    with pytest.raises(StorageError):
        journal.begin("main", ID)
    assert (journal.unfinished_notes(), link.is_symlink(), (tmp_path / "agent").read_text()) == ([], False, "main")


def test_a_spawn_is_refused_if_its_note_cannot_be_written(journal: SpawnJournal, tmp_path: Path) -> None:
    (tmp_path / "spawning").write_text("not a folder")
    with pytest.raises(StorageError, match="nothing was made"):
        journal.begin("main", ID)
    journal.complete(ID)


def test_a_note_is_synced_before_the_spawn_begins(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    calls = record(
        tmp_path / "shim",
        store,
        f"""
import os
from types import SimpleNamespace
from sessiond.runs.spawn_journal import SpawnJournal
journal = SpawnJournal(SimpleNamespace(root_fd=os.open(root, os.O_RDONLY)))
journal.begin("main", "{ID}")
journal.begin("main", "{ID}", sync=False)
""",
    )
    note = f"/spawning/{ID}"
    made = [(call.name, call.path) for call in calls]
    # Note and folder are synced at the same time.
    assert [*made[:3], *sorted(made[3:5]), *made[5:]] == [
        ("mkdir", "/spawning"),
        ("create", note),
        ("write", note),
        ("sync", "/spawning"),
        ("sync", note),
        ("truncate", note),
        ("write", note),
    ]


def test_notes_of_message_files_are_kept_under_their_session(journal: SpawnJournal, tmp_path: Path) -> None:
    session = "33333333-3333-4333-8333-333333333333"
    journal.begin("main", ID, session)
    assert (journal.unfinished_notes(), journal.message_files(), journal.has(ID)) == ([("main", ID, session)], [], True)
    journal.keep(ID, session)
    assert (journal.unfinished_notes(), journal.message_files(), journal.has(ID)) == ([], [(ID, session)], False)
    assert (journal.message_files(session), journal.message_files("another")) == ([(ID, session)], [])
    journal.forget(ID, session)
    assert (journal.message_files(), list((tmp_path / "spawning").iterdir())) == ([], [])


def test_a_session_id_that_is_no_file_name_leaves_the_note_unfinished(journal: SpawnJournal) -> None:
    journal.begin("main", ID, "x")
    journal.keep(ID, "x" * 240)
    assert journal.unfinished_notes() == [("main", ID, "x")]


def test_a_search_for_unclaimed_folders_keeps_a_note_that_is_being_written(tmp_path: Path) -> None:
    folder = tmp_path / "workspace" / ".openclaw" / "attachments" / ID
    folder.mkdir(parents=True)
    root_fd = os.open(tmp_path, os.O_RDONLY)
    root = StoreRoot(root_fd)
    root.catalog = Catalog()  # type: ignore[attr-defined]
    journal = SpawnJournal(cast(SessionStore, root))
    journal.begin("main", ID)
    note = tmp_path / "spawning" / ID
    for written in (b"", b"ma", b"main\n"):
        note.write_bytes(written)
        assert journal.unclaimed_folders("main", tmp_path / "workspace") == []
        assert note.read_bytes() == written
    note.unlink()
    assert journal.unclaimed_folders("main", tmp_path / "workspace") == [ID]
    os.close(root_fd)


def test_a_removal_begins_once(journal: SpawnJournal) -> None:
    session = "33333333-3333-4333-8333-333333333333"
    journal.begin("main", ID, session)
    journal.keep(ID, session)
    assert [journal.begin_removal(ID, session) for _ in range(3)] == [False, True, True]
    assert journal.message_files() == [(ID, session)]
    # The note of these files was removed meanwhile.
    journal.forget(ID, session)
    assert not journal.begin_removal(ID, session)
    assert journal.message_files() == []
