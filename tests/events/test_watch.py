"""The watcher's backends, all with the same tests: what they report of a folder, and that nothing is missed."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import spread
from support.shortage import free_descriptors, refused_threads

from sessiond.events import inotify, polling
from sessiond.events.watch import Kind, Watcher, open_watcher
from sessiond.events.watch_backend import NameChanged, NameGone, Rescan, WatchEvent, merge_events
from sessiond.store import filesystem

LINUX = sys.platform == "linux"
KINDS = [
    pytest.param("inotify", marks=pytest.mark.skipif(not LINUX, reason="inotify is Linux")),
    "watchfiles",
    "polling",
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
async def watcher(kind: Kind) -> AsyncIterator[Watcher]:
    async with open_watcher(kind) as opened:
        yield opened


async def collect_until(watcher: Watcher, *wanted: WatchEvent) -> list[WatchEvent]:
    """Every event up to the one that completes `wanted`."""
    seen: list[WatchEvent] = []
    with trio.fail_after(PATIENCE_S):
        while not set(wanted) <= set(seen):
            seen += await anext(watcher)
    return seen


async def assert_not_reported(watcher: Watcher, mark: Path, unwanted: Callable[[WatchEvent], bool]) -> None:
    """Create `mark` in a watched folder and assert that no event before its report is `unwanted`."""
    append(mark)
    seen = await collect_until(watcher, NameChanged(str(mark.parent), mark.name))
    assert [event for event in seen if unwanted(event)] == []


def append(path: Path, text: str = "x\n") -> None:
    with path.open("a") as file:
        file.write(text)


async def test_the_watcher_has_the_name_of_its_backend(kind: Kind, watcher: Watcher) -> None:
    assert watcher.backend == kind


async def test_a_new_file_and_every_append_to_it_are_reported(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    for _ in range(3):
        append(tmp_path / "f")
        await collect_until(watcher, NameChanged(str(tmp_path), "f"))


async def test_an_append_to_an_existing_file_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    append(tmp_path / "f")
    watcher.add(tmp_path)
    append(tmp_path / "f")
    await collect_until(watcher, NameChanged(str(tmp_path), "f"))


async def test_an_append_through_an_open_descriptor_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    with (tmp_path / "f").open("ab", buffering=0) as file:
        watcher.add(tmp_path)
        for _ in range(3):
            file.write(b"x\n")
            await collect_until(watcher, NameChanged(str(tmp_path), "f"))


async def test_a_truncated_file_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    append(tmp_path / "f")
    watcher.add(tmp_path)
    os.truncate(tmp_path / "f", 0)
    await collect_until(watcher, NameChanged(str(tmp_path), "f"))


async def test_a_file_moved_in_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    append(tmp_path / "f")
    watcher.add(tmp_path / "in")
    (tmp_path / "f").rename(tmp_path / "in" / "f")
    await collect_until(watcher, NameChanged(str(tmp_path / "in"), "f"))


async def test_a_file_replaced_by_rename_is_reported_as_changed(watcher: Watcher, tmp_path: Path) -> None:
    append(tmp_path / "f")
    append(tmp_path / "new", "another\n")
    watcher.add(tmp_path)
    (tmp_path / "new").rename(tmp_path / "f")
    seen = await collect_until(watcher, NameChanged(str(tmp_path), "f"), NameGone(str(tmp_path), "new"))
    assert [event for event in seen if event == NameGone(str(tmp_path), "f")] == []


async def test_a_removed_or_moved_file_is_reported_as_gone(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    append(tmp_path / "in" / "f")
    append(tmp_path / "in" / "g")
    watcher.add(tmp_path / "in")
    (tmp_path / "in" / "f").unlink()
    (tmp_path / "in" / "g").rename(tmp_path / "g")
    await collect_until(watcher, NameGone(str(tmp_path / "in"), "f"), NameGone(str(tmp_path / "in"), "g"))


async def test_a_new_folder_is_reported_and_can_be_watched_too(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    (tmp_path / "sub").mkdir()
    await collect_until(watcher, NameChanged(str(tmp_path), "sub", folder=True))
    watcher.add(tmp_path / "sub")
    append(tmp_path / "sub" / "f")
    await collect_until(watcher, NameChanged(str(tmp_path / "sub"), "f"))


async def test_a_folder_moved_in_is_reported(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "in").mkdir()
    watcher.add(tmp_path / "in")
    (tmp_path / "out" / "sub").rename(tmp_path / "in" / "sub")
    await collect_until(watcher, NameChanged(str(tmp_path / "in"), "sub", folder=True))


async def test_add_then_list_misses_no_file_of_a_new_folder(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    found: set[str] = set()
    wanted = {f"{i}/{j}" for i in range(20) for j in range(5)}

    def make() -> None:
        for i in range(20):
            (tmp_path / str(i)).mkdir()
            for j in range(5):
                append(tmp_path / str(i) / str(j))

    def look_into(name: str) -> None:
        watcher.add(tmp_path / name)
        found.update(f"{name}/{file}" for file in os.listdir(tmp_path / name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, make)
        with trio.fail_after(PATIENCE_S):
            while found != wanted:
                for event in await anext(watcher):
                    match event:
                        case NameChanged(_, name, folder=True):
                            look_into(name)
                        case NameChanged(directory, name):
                            found.add(f"{Path(directory).name}/{name}")
                        case Rescan():
                            for name in os.listdir(tmp_path):
                                look_into(name)


async def test_a_new_folder_is_watched_as_soon_as_it_was_added(watcher: Watcher, tmp_path: Path) -> None:
    """Also below a watched folder, where recursive backends would begin to watch it only after a while."""
    watcher.add(tmp_path)
    for number in range(10):
        folder = tmp_path / f"new{number}"
        folder.mkdir()
        watcher.add(folder)
        append(folder / "f")
        await collect_until(watcher, NameChanged(str(folder), "f"))


async def test_a_folder_created_under_a_watched_name_again_is_watched(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    watcher.add(tmp_path / "sub")
    # The old folder is kept, so that the new one cannot get its inode number.
    (tmp_path / "sub").rename(tmp_path / "kept")
    (tmp_path / "sub").mkdir()
    watcher.add(tmp_path / "sub")
    append(tmp_path / "sub" / "f")
    await collect_until(watcher, NameChanged(str(tmp_path / "sub"), "f"))


async def test_changes_in_subfolders_are_not_reported(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    watcher.add(tmp_path)
    append(tmp_path / "sub" / "f")
    await assert_not_reported(
        watcher, tmp_path / "mark", lambda event: event == NameChanged(str(tmp_path / "sub"), "f")
    )


async def test_a_removed_watch_reports_nothing(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    watcher.add(tmp_path)
    watcher.add(tmp_path / "sub")
    watcher.remove(tmp_path / "sub")
    watcher.remove(tmp_path / "never-added")
    append(tmp_path / "sub" / "f")
    await assert_not_reported(
        watcher, tmp_path / "mark", lambda event: event == NameChanged(str(tmp_path / "sub"), "f")
    )


async def test_adding_a_folder_twice_has_no_further_effect(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    watcher.add(tmp_path)
    append(tmp_path / "f")
    await collect_until(watcher, NameChanged(str(tmp_path), "f"))
    watcher.remove(tmp_path)
    (tmp_path / "other").mkdir()
    watcher.add(tmp_path / "other")
    append(tmp_path / "g")
    await assert_not_reported(
        watcher, tmp_path / "other" / "mark", lambda event: event == NameChanged(str(tmp_path), "g")
    )


async def test_only_an_existing_folder_can_be_watched(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(FileNotFoundError):
        watcher.add(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(NotADirectoryError):
            watcher.add(tmp_path / name)


async def test_a_removed_folder_is_reported_and_can_be_watched_again(watcher: Watcher, tmp_path: Path) -> None:
    sub = tmp_path / "sub"
    sub.mkdir()
    append(sub / "f")
    watcher.add(tmp_path)
    watcher.add(sub)
    shutil.rmtree(sub)
    await collect_until(watcher, NameGone(str(sub)), NameGone(str(tmp_path), "sub"))
    sub.mkdir()
    await collect_until(watcher, NameChanged(str(tmp_path), "sub", folder=True))
    watcher.add(sub)
    append(sub / "f")
    await collect_until(watcher, NameChanged(str(sub), "f"))


async def test_the_removal_of_a_watched_folder_is_reported_without_watching_its_parent(
    watcher: Watcher, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    watcher.add(tmp_path / "alone")
    (tmp_path / "alone").rmdir()
    await collect_until(watcher, NameGone(str(tmp_path / "alone")))


async def test_a_folder_that_moves_is_no_longer_watched_nor_are_its_subfolders(
    watcher: Watcher, tmp_path: Path
) -> None:
    deep = tmp_path / "a" / "deep"
    deep.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", deep):
        watcher.add(folder)
    (tmp_path / "a").rename(tmp_path / "b")
    await collect_until(
        watcher, NameGone(str(tmp_path / "a")), NameGone(str(deep)), NameChanged(str(tmp_path), "b", folder=True)
    )
    append(tmp_path / "b" / "deep" / "f")
    await assert_not_reported(
        watcher, tmp_path / "mark", lambda event: isinstance(event, NameChanged) and event.name == "f"
    )


@check_each("name", [".git", ".venv", "__pycache__", "x.pyc", ".tmp-1", "a~", "node_modules", "é\u0301"])
async def test_a_change_of_a_file_with_any_name_is_reported(watcher: Watcher, tmp_path: Path, name: str) -> None:
    watcher.add(tmp_path)
    append(tmp_path / name)
    await collect_until(watcher, NameChanged(str(tmp_path), name))


async def test_a_name_that_is_not_utf8_does_not_stop_the_watcher(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    strange = os.fsdecode(b"\xff")
    append(tmp_path / strange)
    seen: list[WatchEvent] = []
    with trio.fail_after(PATIENCE_S):
        while not any(isinstance(event, Rescan) or event == NameChanged(str(tmp_path), strange) for event in seen):
            seen += await anext(watcher)
    append(tmp_path / "f")
    await collect_until(watcher, NameChanged(str(tmp_path), "f"))


async def test_a_batch_contains_no_event_twice(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    for i in range(300):
        append(tmp_path / str(i % 3))
    seen: set[WatchEvent] = set()
    with trio.fail_after(PATIENCE_S):
        while len(seen) < 3:
            batch = await anext(watcher)
            assert len(batch) == len(set(batch))
            seen |= set(batch)


async def test_a_cancelled_wait_ends_at_once(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(tmp_path)
    with trio.fail_after(4):  # watchfiles.awatch took 4.6 s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, watcher)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


@check_each("wait_s", [0, 0.001, 0.02, 0.03])
async def test_a_cancelled_wait_loses_no_change(watcher: Watcher, tmp_path: Path, wait_s: float) -> None:
    watcher.add(tmp_path)
    append(tmp_path / "f")
    seen: list[WatchEvent] = []
    with trio.move_on_after(wait_s):
        seen += await anext(watcher)
    with trio.fail_after(PATIENCE_S):
        while not {NameChanged(str(tmp_path), "f"), Rescan("interrupted")} & set(seen):
            seen += await anext(watcher)


async def test_a_second_folder_added_while_waiting_is_watched(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    watcher.add(tmp_path / "a")
    seen: list[WatchEvent] = []

    async def read() -> None:
        while NameChanged(str(tmp_path / "b"), "f") not in seen:
            seen.extend(await anext(watcher))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            watcher.add(tmp_path / "b")
            append(tmp_path / "b" / "f")
    append(tmp_path / "a" / "g")
    await collect_until(watcher, NameChanged(str(tmp_path / "a"), "g"))


async def test_the_first_folder_may_be_added_while_waiting(watcher: Watcher, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_until, watcher, NameChanged(str(tmp_path), "f"))
        await trio.testing.wait_all_tasks_blocked()
        watcher.add(tmp_path)
        append(tmp_path / "f")


async def test_closing_ends_a_wait(kind: Kind, tmp_path: Path) -> None:
    async def read(watcher: Watcher) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await anext(watcher)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            async with open_watcher(kind) as watcher:
                watcher.add(tmp_path)
                nursery.start_soon(read, watcher)
                await trio.testing.wait_all_tasks_blocked()


@pytest.mark.skipif(not LINUX, reason="inotify is Linux")
async def test_events_right_behind_others_are_read_together(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    names = [NameChanged(str(tmp_path), name) for name in "abc"]
    async with open_watcher("inotify") as watcher:
        watcher.add(tmp_path)
        append(tmp_path / "a")
        assert await anext(watcher) == names[:1]
        async with trio.open_nursery() as nursery:
            seen: list[WatchEvent] = []

            async def note_next() -> None:
                seen.extend(await anext(watcher))

            nursery.start_soon(note_next)
            for name in "bc":
                append(tmp_path / name)
                await trio.testing.wait_all_tasks_blocked()
                assert seen == []
            mock_clock.jump(inotify._GATHER_S)
        assert seen == names[1:]
        mock_clock.jump(1)
        append(tmp_path / "a")
        assert await anext(watcher) == names[:1]  # at once: the clock stands still


@pytest.mark.skipif(not LINUX, reason="inotify is Linux")
async def test_events_behind_nothing_new_are_gathered_for_longer(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with open_watcher("inotify") as watcher, trio.open_nursery() as nursery:
        watcher.add(tmp_path)
        append(tmp_path / "a")
        assert await anext(watcher) == [NameChanged(str(tmp_path), "a")]
        watcher.rest()
        seen: list[WatchEvent] = []

        async def note_next() -> None:
            seen.extend(await anext(watcher))

        nursery.start_soon(note_next)
        append(tmp_path / "b")
        for jump_s, expected in ((inotify._GATHER_S, 0), (inotify._REST_S, 1)):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(jump_s)
            await trio.testing.wait_all_tasks_blocked()
            assert len(seen) == expected


def test_merging_keeps_the_last_event_of_each_name_and_puts_a_rescan_first() -> None:
    events: list[WatchEvent] = [
        NameChanged("/a", "x"), NameGone("/a", "y"), NameChanged("/b", "x"), Rescan("overflow"), NameChanged("/a", "y"),
        NameGone("/a", "x"), Rescan("overflow"),
    ]  # fmt: skip
    assert merge_events(events) == [
        Rescan("overflow"),
        NameChanged("/b", "x"),
        NameChanged("/a", "y"),
        NameGone("/a", "x"),
    ]


@pytest.mark.skipif(not LINUX, reason="inotify is Linux")
async def test_an_overflow_of_the_kernels_queue_gives_a_rescan_and_watching_goes_on(tmp_path: Path) -> None:
    limit = queue_limit()
    if limit > 100_000:
        pytest.skip("the queue is too long to fill here")
    async with open_watcher("inotify") as watcher:
        watcher.add(tmp_path)
        with (tmp_path / "a").open("ab", buffering=0) as a, (tmp_path / "b").open("ab", buffering=0) as b:
            for _ in range(limit // 2 + 100):  # alternately: the kernel merges equal neighbours
                a.write(b"x")
                b.write(b"x")
        await collect_until(watcher, Rescan("overflow"))
        append(tmp_path / "c")
        await collect_until(watcher, NameChanged(str(tmp_path), "c"))


def queue_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def pack(watch: int, mask: int, name: bytes, padding: int) -> bytes:
    padded = name + b"\0" * padding
    return struct.pack("=iIII", watch, mask, 0, len(padded)) + padded


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 2**31 - 1),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=255).filter(lambda name: b"\0" not in name),
            st.integers(1, 16),
        )
    )
)
@example([(1, 2, b"a", 1), (1, 2, b"b", 1), (1, 2, b"a", 1)])
def test_packed_kernel_events_are_parsed_back_and_of_the_same_ones_the_last(
    events: list[tuple[int, int, bytes, int]],
) -> None:
    last: dict[bytes, tuple[int, int, bytes]] = {}
    for event in events:
        last.pop(pack(*event), None)
        last[pack(*event)] = event[:3]
    data = b"".join(pack(*event) for event in events)
    assert [tuple(event) for event in inotify.parse(data)] == [*last.values()]


@given(st.binary(max_size=200))
def test_parsing_any_bytes_terminates(data: bytes) -> None:
    assert len(list(inotify.parse(data))) <= len(data) // 16


FALLBACK = """
    import sys, trio
    from pathlib import Path
    from sessiond.events.watch import open_watcher
    from sessiond.events.watch_backend import NameChanged, Rescan, WatchUnavailable

    async def main(folder, kind):
        async with open_watcher(kind) as watcher:
            for name in "abc":
                (folder / name).mkdir()
                watcher.add(folder / name)
            print(watcher.backend)
            (folder / "c" / "f").touch()
            (folder / "a" / "f").touch()
            wanted = {NameChanged(str(folder / "a"), "f"), NameChanged(str(folder / "c"), "f")}
            seen = set()
            with trio.fail_after(180):
                while not wanted <= seen:
                    seen |= set(await anext(watcher))
            print(Rescan("backend") in seen)

    try:
        trio.run(main, Path(sys.argv[1]), sys.argv[2])
    except WatchUnavailable as error:
        print(error.strerror)
"""


def run_with_limit(limit: str, value: int, kind: Kind, folder: Path) -> list[str]:
    """The output of the script above in a user namespace where `limit` is `value`."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(FALLBACK))
    set_limit = f'echo {value} > /proc/sys/user/{limit} && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "sh", "-c", set_limit, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("no user namespace with limits of its own here")
    (folder / "watched").mkdir()
    command = [*namespace, sys.executable, str(script), str(folder / "watched"), kind]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    return done.stdout.splitlines()


@pytest.mark.skipif(not LINUX, reason="inotify is Linux")
@pytest.mark.parametrize(
    ("limit", "value", "kind", "printed"),
    spread(
        [
            ("max_inotify_watches", 100, "auto", ["inotify", "False"]),
            # Folders watched when the limit is reached are watched by the next backend, and a rescan is reported.
            ("max_inotify_watches", 2, "auto", ["polling", "True"]),
            ("max_inotify_watches", 2, "inotify", ["the kernel's limits for watching files are used up"]),
            ("max_inotify_instances", 0, "auto", ["polling", "True"]),
            ("max_inotify_instances", 0, "watchfiles", ["polling", "True"]),
            ("max_inotify_instances", 0, "inotify", ["Too many open files"]),
        ],
        2,
    ),
)
def test_reaching_a_kernel_limit_switches_to_the_next_backend(
    limit: str, value: int, kind: Kind, printed: list[str], tmp_path: Path
) -> None:
    assert run_with_limit(limit, value, kind, tmp_path) == printed


def test_watchfiles_is_imported_only_by_its_backend() -> None:
    script = """
        import sys, trio
        from sessiond.events.watch import open_watcher

        async def main():
            async with open_watcher(sys.argv[1]):
                print("watchfiles" in sys.modules)

        trio.run(main)
    """
    imported = {}
    for kind in ("polling", "watchfiles", *(["inotify"] if LINUX else [])):
        command = [sys.executable, "-c", textwrap.dedent(script), kind]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        imported[kind] = done.stdout.strip()
    assert imported == {"polling": "False", "watchfiles": "True"} | ({"inotify": "False"} if LINUX else {})


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux")
async def test_a_network_folder_is_polled(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "remote").mkdir()
    watcher = Watcher(("inotify", "polling"), lambda path: "NFS" if path.endswith("remote") else None)
    try:
        watcher.add(tmp_path / "local")
        assert watcher.backend == "inotify"
        watcher.add(tmp_path / "remote")
        assert watcher.backend == "polling"
        with trio.fail_after(PATIENCE_S):
            assert await anext(watcher) == [Rescan("backend")]
            (tmp_path / "local" / "a").touch()
            assert NameChanged(str(tmp_path / "local"), "a") in await anext(watcher)
    finally:
        watcher.close()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux")
async def test_a_configured_backend_is_kept_even_for_a_network_folder(tmp_path: Path) -> None:
    watcher = Watcher(("inotify",), lambda _path: "NFS")
    try:
        watcher.add(tmp_path)
        assert watcher.backend == "inotify"
    finally:
        watcher.close()


def test_a_local_or_missing_folder_does_not_count_as_a_network_folder(tmp_path: Path) -> None:
    assert filesystem.deaf_kind("/proc") is None
    assert filesystem.deaf_kind(str(tmp_path / "none")) is None


@pytest.mark.parametrize("kind", ["watchfiles", "polling"])
async def test_changes_are_noticed_later_where_no_thread_can_look_for_them(kind: Kind, tmp_path: Path) -> None:
    with capture_logs() as logs, trio.fail_after(PATIENCE_S):
        async with open_watcher(kind) as watcher, trio.open_nursery() as nursery:
            watcher.add(tmp_path)
            with refused_threads():
                nursery.start_soon(collect_until, watcher, NameChanged(str(tmp_path), "f"))
                while not logs:
                    await trio.lowlevel.checkpoint()
                append(tmp_path / "f")
    assert logs[0]["event"] == "changes of files are noticed later"


async def test_a_folder_that_cannot_be_listed_just_now_is_not_gone(tmp_path: Path) -> None:
    async with open_watcher("polling") as watcher:
        watcher.add(tmp_path)
        before = dict(watcher._backend._listings)
        with free_descriptors(0):
            assert polling._scan(before, dict(watcher._backend._identity)) == before
        append(tmp_path / "f")
        await collect_until(watcher, NameChanged(str(tmp_path), "f"))
