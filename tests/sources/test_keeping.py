"""Files of other programs that are kept: hard links, copies, and sessions that are read from them: real files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.followed_store import append
from support.foreign_sessions import UUID, FollowedSources, followed_sources, key_of, pi_file, pi_header, pi_line

from sessiond.model.event import ChangedEvent
from sessiond.sources import keeping, reading
from sessiond.store import dirfd, doctor

KEEP = "[sources]\nkeep = true\n"


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system than temporary folders."""
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield Path(folder)
    except OSError:
        pytest.skip("there is no /dev/shm")


def kept_file(tmp_path: Path, number: int) -> Path:
    return tmp_path / "store" / "kept" / "pi" / f"{UUID.format(number)}.jsonl"


async def test_the_title_and_parent_of_a_sub_agent_are_kept(tmp_path: Path, home: Path) -> None:
    project = home / ".claude" / "projects" / "-work"
    folder = project / UUID.format(1) / "subagents"
    folder.mkdir(parents=True)
    meta, key = folder / "agent-a1.meta.json", "claude:agent-a1"
    line = {"type": "user", "uuid": "u", "timestamp": "2026-01-02T03:04:05.000Z"}
    (folder / "agent-a1.jsonl").write_text(json.dumps(line | {"message": {"role": "user", "content": "a task"}}) + "\n")
    facts = tmp_path / "store" / "kept" / "claude" / "agent-a1.facts"

    def say(followed: FollowedSources) -> tuple[str | None, str | None]:
        entry = followed.parts.session(key).entry
        return entry.source and entry.source.title, entry.spawned_by

    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        await followed.wait_until(facts.exists)
        meta.write_text('{"description": "Count the birds"}')
        await followed.wait_until(lambda: b"birds" in facts.read_bytes())
    shutil.rmtree(project)
    (tmp_path / "store" / "cache" / "sources.jsonl").unlink()
    kept, lost = ("Count the birds", f"claude:{UUID.format(1)}"), ("a task", None)
    for damage in (None, b"", b"\xff" * 9, b'{"title": 7}'):
        if damage is not None:
            facts.write_bytes(damage)
        async with followed_sources(tmp_path, home, config=KEEP) as followed:
            await followed.wait_whole()
            assert say(followed) == (kept if damage is None else lost), damage
        (tmp_path / "store" / "cache" / "sources.jsonl").unlink(missing_ok=True)


async def wait_kept(followed: FollowedSources, path: Path, kept: Path) -> None:
    await followed.wait_until(lambda: kept.exists() and kept.samefile(path), f"{kept} is no link")


async def test_a_kept_file_is_a_link_and_takes_the_place_of_the_programs_own_when_that_is_gone(
    tmp_path: Path, home: Path
) -> None:
    path, kept = pi_file(home, 1, "one", "two"), kept_file(tmp_path, 1)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        await wait_kept(followed, path, kept)
        assert stat.S_IMODE(kept.parent.stat().st_mode) == stat.S_IMODE(kept.parent.parent.stat().st_mode) == 0o700
        append(path, pi_line("three"))
        session = followed.parts.session(key_of(1))
        await followed.wait_until(lambda: session.entry.message_count == 3)
        _, reader = followed.parts.follow(None)
        path.unlink()
        await followed.wait_until(lambda: session.path == str(kept))
        assert followed.parts.session(key_of(1)) is session
        page = await followed.parts.store.page(
            session, lambda record: record.message is not None, limit=9, max_bytes=1 << 20
        )
        assert len(page.lines) == session.entry.message_count == 3
        await reader.wait_until(lambda: reader.events)
        assert [event.phase for event in reader.events if isinstance(event, ChangedEvent)] == ["patch"]
        assert any("1 session shown from a kept file" in found.what for found in followed.sources.findings())
        # The file comes back.
        os.link(kept, path)
        await followed.wait_until(lambda: session.path == str(path))
        append(path, pi_line("four"))
        await followed.wait_until(lambda: session.entry.message_count == 4)


async def test_what_was_kept_is_listed_at_a_start_even_when_the_whole_folder_of_the_program_is_gone(
    tmp_path: Path, home: Path
) -> None:
    paths = [pi_file(home, number, "hello") for number in (1, 2)]
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        for number, path in enumerate(paths, 1):
            await wait_kept(followed, path, kept_file(tmp_path, number))
    paths[0].unlink()
    for again in range(2):
        async with followed_sources(tmp_path, home, config=KEEP) as followed:
            await followed.wait_whole()
            assert followed.keys == {key_of(1), key_of(2)}
            places = {number: followed.parts.session(key_of(number)).path for number in (1, 2)}
            assert places[1] == str(kept_file(tmp_path, 1))
            assert (places[2] == str(paths[1])) is (again == 0)
            assert not [one for one in followed.sources.findings() if one.level != "ok"]
            if not again:
                os.rename(home / ".pi", home / "away")
                await followed.wait_until(lambda: followed.parts.session(key_of(2)).path == str(kept_file(tmp_path, 2)))
    async with followed_sources(tmp_path, home) as followed:
        assert followed.keys == set(), "without `keep` kept files are not shown"


async def test_a_replaced_file_gets_a_new_link(tmp_path: Path, home: Path) -> None:
    path, kept = pi_file(home, 1, "one"), kept_file(tmp_path, 1)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        await wait_kept(followed, path, kept)
        other = path.with_name("other")
        other.write_bytes(pi_header(UUID.format(1)) + pi_line("anew") + pi_line("again"))
        os.rename(other, path)
        await wait_kept(followed, path, kept)
        third = path.with_name("third")
        third.write_bytes(pi_header(UUID.format(3)) + pi_line("another session"))
        os.rename(third, path)
        await followed.wait_until(lambda: followed.keys == {key_of(1), key_of(3)})
        assert followed.parts.session(key_of(1)).path == str(kept)
        assert followed.parts.session(key_of(1)).entry.message_count == 2


async def test_keep_is_switched_on_and_off_while_the_daemon_runs(tmp_path: Path, home: Path) -> None:
    paths = [pi_file(home, number, "hello") for number in (1, 2)]
    async with followed_sources(tmp_path, home) as followed:
        assert not (tmp_path / "store" / "kept").exists()
        followed.configure(KEEP)
        for number, path in enumerate(paths, 1):
            await wait_kept(followed, path, kept_file(tmp_path, number))
        paths[0].unlink()
        await followed.wait_until(lambda: followed.parts.session(key_of(1)).path == str(kept_file(tmp_path, 1)))
        followed.configure("")
        await followed.wait_until(lambda: followed.keys == {key_of(2)})
        followed.configure(KEEP)
        await followed.wait_until(lambda: followed.keys == {key_of(1), key_of(2)})
        followed.configure(KEEP + "[sources.pi]\nenabled = false")
        await followed.wait_until(lambda: followed.keys == set())
        followed.configure(KEEP)
        await followed.wait_until(lambda: followed.keys == {key_of(1), key_of(2)})


async def test_on_another_file_system_the_file_is_copied_and_what_was_appended(tmp_path: Path, elsewhere: Path) -> None:
    if os.stat(elsewhere).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("it is the same file system")
    path, kept = pi_file(elsewhere, 1, "one"), kept_file(tmp_path, 1)
    async with followed_sources(tmp_path, elsewhere, config=KEEP) as followed:
        await followed.wait_until(lambda: kept.exists() and kept.read_bytes() == path.read_bytes())
        inode = kept.stat().st_ino
        append(path, pi_line("two"))
        await followed.wait_until(lambda: kept.read_bytes() == path.read_bytes())
        assert kept.stat().st_ino == inode, "only what was new was copied"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        path.write_bytes(pi_header(UUID.format(1)) + pi_line("rewritten"))
        await followed.wait_until(lambda: kept.read_bytes() == path.read_bytes())
        path.unlink()
        session = followed.parts.session(key_of(1))
        await followed.wait_until(lambda: session.path == str(kept))
        assert session.entry.message_count == 1


async def test_a_long_session_that_is_gone_before_it_was_folded_is_folded_from_its_kept_file(
    tmp_path: Path, home: Path
) -> None:
    path = pi_file(home, 1, *("x" * 1000 for _ in range(3 * reading.END_BYTES // 1000)))
    kept = kept_file(tmp_path, 1)
    kept.parent.mkdir(parents=True)
    os.link(path, kept)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        session = followed.parts.session(key_of(1))
        path.unlink()
        await followed.sources.complete(session)
        await followed.wait_until(lambda: session.path == str(kept))
        await followed.wait_whole()
        assert session.entry.message_count == 3 * reading.END_BYTES // 1000


async def test_a_kept_folder_that_cannot_be_used_is_a_line_in_doctor(tmp_path: Path, home: Path) -> None:
    path = pi_file(home, 1, "one")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
    (tmp_path / "store" / "kept").symlink_to(home)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        assert followed.keys == {key_of(1)}
        assert any("its files are not kept" in found.what for found in followed.sources.findings())
        append(path, pi_line("two"))
        await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 2)


async def test_a_file_that_cannot_be_kept_is_a_line_in_doctor_until_it_can(tmp_path: Path, home: Path) -> None:
    pi_file(home, 1, "one")
    kept = kept_file(tmp_path, 1)
    (kept / "in the way").mkdir(parents=True)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:

        def is_named() -> bool:
            return any("1 file not kept: " in found.what for found in followed.sources.findings())

        await followed.wait_until(is_named)
        (kept / "in the way").rmdir()
        kept.rmdir()
        other = pi_file(home, 2, "two")
        await wait_kept(followed, other, kept_file(tmp_path, 2))
        await followed.wait_until(lambda: kept.exists() and not is_named())


async def test_the_doctor_knows_the_folder_and_leaves_the_mode_of_what_is_in_it(tmp_path: Path, home: Path) -> None:
    path, kept = pi_file(home, 1, "one"), kept_file(tmp_path, 1)
    path.chmod(0o644)
    async with followed_sources(tmp_path, home, config=KEEP) as followed:
        await wait_kept(followed, path, kept)
    for fix in (False, True):
        findings = doctor.report(tmp_path / "store", fix=fix)["findings"]
        assert not [one for one in findings if "kept" in str(one)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    kept.parent.chmod(0o755)
    findings = doctor.report(tmp_path / "store")["findings"]
    assert [one["thing"] for one in findings if one["level"] != "ok"] == ["kept"]


@given(st.binary(max_size=9000), st.binary(max_size=9000), st.booleans())
def test_a_copy_is_always_what_the_file_is(before: bytes, after: bytes, appended: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "file")
        with dirfd.closing(dirfd.open_root(folder)) as folder_fd:
            for data in (before, before + after if appended else after):
                source.write_bytes(data)
                with dirfd.closing(os.open(source, os.O_RDONLY)) as fd:
                    kept = keeping._look_at(folder_fd, "kept")
                    keeping._copy(fd, os.fstat(fd), folder_fd, "kept", kept)
                if appended or len(before) <= keeping._COMPARED_BYTES:
                    assert Path(folder, "kept").read_bytes() == data


def test_a_disk_without_room_is_an_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "kept").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with dirfd.closing(dirfd.open_root(tmp_path / "kept")) as fd, dirfd.closing(os.open(tmp_path / "file", 0)) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                keeping._copy(file, os.fstat(file), fd, "copy", None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert os.listdir(tmp_path / "kept") == []
        keeping._copy(file, os.fstat(file), fd, "copy", None)
        assert os.listdir(tmp_path / "kept") == ["copy"]
