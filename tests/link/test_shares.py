from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from sessiond.link.failures import LinkError
from sessiond.link.shares import EVERYBODY, SharesFile, mark, unmark

MAIN, SIDE = "agent:main:main", "agent:main:side"


def test_a_mark_is_for_one_machine_or_for_all_and_is_made_once(tmp_path: Path) -> None:
    assert (mark(tmp_path, MAIN, "mars"), mark(tmp_path, MAIN, "mars"), mark(tmp_path, MAIN, "moon")) == (
        True,
        False,
        True,
    )
    assert mark(tmp_path, SIDE)
    shares = SharesFile(tmp_path)
    assert shares.marks == {MAIN: {"mars", "moon"}, SIDE: {EVERYBODY}}
    assert (shares.peers_of(MAIN), shares.peers_of("agent:main:other")) == ({"mars", "moon"}, set())
    assert ((tmp_path / "link" / "shares.json").stat().st_mode & 0o777) == 0o600


def test_a_mark_is_taken_away_from_one_machine_or_from_all(tmp_path: Path) -> None:
    for machine in ("mars", "moon", EVERYBODY):
        mark(tmp_path, MAIN, machine)
    assert (unmark(tmp_path, MAIN, "moon"), unmark(tmp_path, MAIN, "moon")) == (True, False)
    assert SharesFile(tmp_path).marks == {MAIN: {"mars", EVERYBODY}}
    assert (unmark(tmp_path, MAIN), unmark(tmp_path, MAIN)) == (True, False)
    assert SharesFile(tmp_path).marks == {}


def test_a_link_that_runs_sees_what_has_changed(tmp_path: Path) -> None:
    shares = SharesFile(tmp_path)
    assert (shares.refresh(), shares.marks) == (False, {})
    mark(tmp_path, MAIN)
    assert (shares.refresh(), shares.refresh(), shares.marks) == (True, False, {MAIN: {EVERYBODY}})
    unmark(tmp_path, SIDE)
    assert not shares.refresh()
    (tmp_path / "link" / "shares.json").unlink()
    assert (shares.refresh(), shares.marks) == (True, {})


def test_a_mark_that_was_taken_away_while_no_descriptor_was_free_is_gone_when_there_is_one(tmp_path: Path) -> None:
    mark(tmp_path, MAIN)
    shares = SharesFile(tmp_path)
    unmark(tmp_path, MAIN)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(LinkError, match="cannot be read"):
            shares.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (shares.refresh(), shares.marks) == (True, {})


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": "mars"}', b'{"a": [1]}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_marks_nothing_and_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "shares.json").write_bytes(damage)
    for ask in (lambda: SharesFile(tmp_path), lambda: mark(tmp_path, MAIN), lambda: unmark(tmp_path, MAIN)):
        with pytest.raises(LinkError, match=r"link/shares\.json in the store .* is damaged; remove it"):
            ask()
    assert (tmp_path / "link" / "shares.json").read_bytes() == damage


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "elsewhere").write_text(f'{{"{MAIN}": ["*"]}}')
    (tmp_path / "link" / "shares.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match="cannot be read: a symbolic link"):
        SharesFile(tmp_path)


def test_marks_made_at_once_are_all_kept(tmp_path: Path) -> None:
    threads = [threading.Thread(target=mark, args=(tmp_path, f"agent:main:{number}")) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(SharesFile(tmp_path).marks) == 16
    assert sorted(os.listdir(tmp_path / "link")) == ["shares.json", "shares.lock"]
