"""The outbox: deliveries are stored before they are sent, retried until acknowledged, and kept when given up."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from faults import power
from faults.record import record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.conversing_runs import Adapter
from support.rows import check_each
from support.sampling import amount
from support.supervised_runs import NOW, RunHarness, clock, inline, run_harness

from sessiond.config.settings import DeliveryConfig
from sessiond.delivery.channels import Channels, Delivery
from sessiond.delivery.notification import Notification
from sessiond.delivery.outbox import Outbox, open_outbox
from sessiond.delivery.outbox_files import OutboxFiles
from sessiond.errors import StorageError
from sessiond.runtimes.attached import AgentConnectionLost, RefusedByAgent
from sessiond.store import dirfd


def delivery(number: int = 1, **fields: Any) -> Delivery:
    values: dict[str, Any] = {
        "delivery_id": f"d{number}",
        "channel": "telegram",
        "to": "-100",
        "session_key": "agent:main:main",
        "text": f"text {number}",
        "title": "main",
        "created_at": NOW + round(trio.current_time() * 1000),
    }
    return Delivery(**(values | fields))


class OutboxHarness:
    """An outbox with one adapter."""

    def __init__(self, runs: RunHarness, outbox: Outbox, channels: Channels) -> None:
        self.runs, self.outbox, self.channels = runs, outbox, channels
        self.adapter = Adapter()
        self.times: list[float] = []
        self.denied: set[str] = set()
        self.checked: list[str] = []  # deliveries whose permission was checked, before each attempt
        self.added = [one.delivery_id for one in outbox.pending]

    @property
    def finished(self) -> list[tuple[str, str]]:
        """Each finished delivery and its outcome."""
        statuses = [(one, self.outbox.status(one)) for one in self.added]
        return [
            (one, status or ("skipped" if one in self.denied else "delivered"))
            for one, status in statuses
            if status != "pending"
        ]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.runs.store.path / "outbox").iterdir())

    async def add(self, one: Delivery) -> None:
        """Put it into the outbox, without releasing it for sending."""
        self.added.append(one.delivery_id)
        await self.outbox.put(one)

    async def wait_for_finished(self, count: int) -> None:
        """Looks ten times a second at first, and then less often: half an hour has many seconds."""
        began = trio.current_time()
        while len(self.finished) < count:  # noqa: ASYNC110 - under an autojump clock, a sleep lets every other task go on
            await trio.sleep(0.1 if trio.current_time() < began + 10 else 5)

    async def refuse(self, params: dict[str, Any]) -> Any:
        self.times.append(trio.current_time())
        raise RefusedByAgent("the network is down")


@asynccontextmanager
async def open_harness(folder: Path, *, run_sync: Any = inline, attach: bool = True) -> AsyncIterator[OutboxHarness]:
    async with run_harness(folder, run_sync=run_sync) as runs:
        channels = Channels(
            dict,
            environ={},
            cwd=Path("/"),
            on_attach=lambda channel: outbox.make_due(channel),  # noqa: PLW0108 - opened below
        )
        denied: set[str] = set()
        checked: list[str] = []
        async with open_outbox(
            runs.store,
            channels,
            channels,
            clock(),
            durable=True,
            settings=DeliveryConfig,
            allowed=lambda one: checked.append(one.delivery_id) or one.delivery_id not in denied,  # type: ignore[func-returns-value]
        ) as outbox:
            harness = OutboxHarness(runs, outbox, channels)
            harness.denied, harness.checked = denied, checked
            if attach:
                channels.attach("telegram", harness.adapter)
            yield harness
            runs.nursery.cancel_scope.cancel()


async def start(harness: OutboxHarness) -> None:
    await harness.runs.nursery.start(harness.outbox.run)


async def add_and_send(harness: OutboxHarness, one: Delivery) -> None:
    await harness.add(one)
    harness.outbox.send(one.delivery_id)


async def test_a_delivery_is_stored_before_it_is_sent_and_removed_after_the_acknowledgement(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        files_while_sent: list[list[str]] = []

        async def look(params: dict[str, Any]) -> Any:
            files_while_sent.append(harness.files)
            return None

        harness.adapter.act = look
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)
        assert files_while_sent == [["d1.json"]]
        assert harness.files == []
        assert harness.finished == [("d1", "delivered")]
        assert harness.outbox.status("d1") is None
        assert harness.adapter.asked == [
            (
                "channel.deliver",
                {"deliveryId": "d1", "to": "-100", "sessionKey": "agent:main:main", "text": "text 1"},
            )
        ]


async def test_a_delivery_is_not_sent_before_send_is_called(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        await harness.add(delivery())
        await trio.sleep(1000)
        assert harness.adapter.asked == []
        assert harness.outbox.status("d1") == "pending"
        harness.outbox.send("d1")
        harness.outbox.send("d1")
        await harness.wait_for_finished(1)
        assert harness.adapter.texts == ["text 1"]


async def test_a_second_delivery_with_the_same_id_is_ignored(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        await add_and_send(harness, delivery())
        await add_and_send(harness, delivery(text="another"))
        harness.channels.attach("telegram", harness.adapter)
        await harness.wait_for_finished(1)
        await trio.sleep(1000)
        assert harness.adapter.texts == ["text 1"]


async def test_retries_follow_after_5_10_and_20_seconds_and_then_every_minute_for_30_minutes(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        harness.adapter.act = harness.refuse
        began = trio.current_time()
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)
        times = [round(time - began) for time in harness.times]
        assert times[:6] == [0, 5, 15, 35, 95, 155]
        assert times[-2:] == [1775, 1835]
        assert harness.finished == [("d1", "failed")]
        assert (harness.outbox.status("d1"), len(harness.outbox.dead_letters)) == ("failed", 1)
        [letter] = harness.outbox.dead_letters
        assert letter.last_error == "the adapter of telegram answered: the network is down"
        kept = json.loads((harness.runs.store.path / "outbox/d1.json").read_bytes())
        assert (kept["attempts"], kept["failedAt"]) == (len(times), NOW + round(1835_000 + began * 1000))


@pytest.mark.parametrize(("early_ms", "attempts"), [(0, 4), (1, 5)])
async def test_an_attempt_30_minutes_after_creation_is_the_last_one(
    tmp_path: Path, autojump_clock: Any, early_ms: int, attempts: int
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        harness.adapter.act = harness.refuse
        now_ms = NOW + round(trio.current_time() * 1000)
        # The fourth attempt is due after 35 seconds.
        await add_and_send(harness, delivery(created_at=now_ms + 35_000 + early_ms - 30 * 60_000))
        await harness.wait_for_finished(1)
        assert (len(harness.times), harness.finished) == (attempts, [("d1", "failed")])


async def test_a_dead_letter_is_kept_over_a_restart_and_not_sent_again(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)
    async with open_harness(tmp_path / "store") as harness:
        assert [one.delivery_id for one in harness.outbox.dead_letters] == ["d1"]
        await start(harness)
        await harness.add(delivery())
        harness.outbox.send("d1")
        await trio.sleep(1000)
        assert harness.adapter.asked == []
        assert harness.files == ["d1.json"]


async def test_a_delivery_whose_acknowledgement_is_lost_is_sent_again_under_the_same_id(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)

        async def lose_acknowledgement(params: dict[str, Any]) -> Any:
            harness.adapter.act = harness.adapter.acknowledge
            raise AgentConnectionLost

        harness.adapter.act = lose_acknowledgement
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)
        assert [params["deliveryId"] for _, params in harness.adapter.asked] == ["d1", "d1"]


async def test_deliveries_left_by_an_earlier_daemon_are_sent_at_the_start_except_those_on_hold(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        for number in (1, 2):
            await harness.add(delivery(number))
    async with open_harness(tmp_path / "store") as harness:
        harness.outbox.hold("d2")
        harness.outbox.hold("no such delivery")
        await start(harness)
        await harness.wait_for_finished(1)
        await trio.sleep(1000)
        assert harness.adapter.texts == ["text 1"]
        harness.outbox.send("d2")
        await harness.wait_for_finished(2)
        assert harness.adapter.texts == ["text 1", "text 2"]


async def test_a_waiting_delivery_is_sent_as_soon_as_an_adapter_attaches(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        await add_and_send(harness, delivery())
        await trio.sleep(36)  # the next attempt would be at 95 s
        harness.channels.attach("telegram", harness.adapter)
        await harness.wait_for_finished(1)
        assert trio.current_time() == pytest.approx(36, abs=1)


async def test_an_adapter_that_attaches_while_another_one_fails_gets_the_delivery_at_once(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        newer = Adapter()

        async def disconnect(params: dict[str, Any]) -> Any:
            await trio.sleep(3)
            harness.channels.attach("telegram", newer)
            raise AgentConnectionLost

        harness.adapter.act = disconnect
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)
        assert newer.texts == ["text 1"]
        assert trio.current_time() == pytest.approx(3, abs=1)


@pytest.mark.parametrize("first_sent", ["d1", "d2"])
async def test_deliveries_to_one_address_are_sent_in_the_order_of_their_creation(
    tmp_path: Path, autojump_clock: Any, first_sent: str
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        for number in (1, 2):
            await harness.add(delivery(number))
        # In the same moment, as both tasks run on when one commit has written both closing records.
        for delivery_id in sorted(["d1", "d2"], reverse=first_sent == "d2"):
            harness.outbox.send(delivery_id)
        await harness.wait_for_finished(2)
        assert harness.adapter.texts == ["text 1", "text 2"]


async def test_a_delivery_waits_for_an_earlier_one_to_its_address_that_is_being_written(
    tmp_path: Path, autojump_clock: Any
):
    async def write_slowly(function: Callable[..., Any], *args: Any) -> Any:
        if args and isinstance(args[0], Delivery) and args[0].delivery_id == "d1":
            await trio.sleep(5)
        return function(*args)

    async with open_harness(tmp_path / "store", run_sync=write_slowly) as harness, trio.open_nursery() as nursery:
        await start(harness)
        nursery.start_soon(add_and_send, harness, delivery(1))
        await trio.sleep(1)
        nursery.start_soon(add_and_send, harness, delivery(2))
        nursery.start_soon(add_and_send, harness, delivery(3, to="-200"))
        await trio.sleep(1)
        assert harness.adapter.texts == ["text 3"]
        await trio.sleep(10)
        assert harness.adapter.texts == ["text 3", "text 1", "text 2"]


async def test_a_later_delivery_passes_one_that_failed_and_the_oldest_due_one_is_next(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        attempts: list[str] = []

        async def refuse_first(params: dict[str, Any]) -> Any:
            attempts.append(params["deliveryId"])
            if attempts == ["d1"]:
                raise RefusedByAgent("not now")
            if params["deliveryId"] == "d2":
                await trio.sleep(10)
            return {}

        harness.adapter.act = refuse_first
        for number in (1, 2, 3):
            await add_and_send(harness, delivery(number))
        await harness.wait_for_finished(3)
        assert attempts == ["d1", "d2", "d1", "d3"]


async def test_deliveries_created_in_the_same_millisecond_keep_their_order_after_a_restart(
    tmp_path: Path, autojump_clock: Any
):
    numbers = (2, 4, 1, 3)
    async with open_harness(tmp_path / "store") as harness:
        for number in numbers:
            await harness.add(delivery(number, created_at=NOW))
    async with open_harness(tmp_path / "store") as harness:
        await harness.add(delivery(0, created_at=NOW))  # behind those that the earlier daemon left
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        await harness.wait_for_finished(5)
        assert harness.adapter.texts == [f"text {number}" for number in (*numbers, 0)]


@pytest.mark.parametrize(("set_back_ms", "kept"), [(999, False), (1000, True)])
async def test_a_delivery_has_the_time_of_the_clock_where_that_was_set_back(
    tmp_path: Path, autojump_clock: Any, set_back_ms: int, *, kept: bool
):
    async with open_harness(tmp_path / "store") as harness:
        await harness.add(delivery(1, created_at=NOW))
        await harness.add(delivery(2, created_at=NOW - set_back_ms))
        times = {one.delivery_id: one.created_at for one in harness.outbox.pending}
        assert times == {"d1": NOW, "d2": NOW - set_back_ms if kept else NOW + 1}


async def test_deliveries_to_one_address_are_sent_in_order_and_a_refused_one_does_not_hold_up_the_others(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)

        async def refuse_first(params: dict[str, Any]) -> Any:
            if params["deliveryId"] == "d1":
                raise RefusedByAgent("not this one")
            return {}

        harness.adapter.act = refuse_first
        for number in range(1, 5):
            await add_and_send(harness, delivery(number))
        await add_and_send(harness, delivery(5, to="-200"))
        await harness.wait_for_finished(4)
        assert sorted(harness.finished) == [(f"d{number}", "delivered") for number in range(2, 6)]
        assert [text for text in harness.adapter.texts if text != "text 5"][:4] == [f"text {n}" for n in range(1, 5)]


async def test_a_delivery_of_a_session_that_may_no_longer_send_is_skipped(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        await add_and_send(harness, delivery())
        await trio.sleep(1)
        harness.denied.add("d1")
        harness.channels.attach("telegram", harness.adapter)
        await harness.wait_for_finished(1)
        assert (harness.finished, harness.adapter.asked, harness.files) == ([("d1", "skipped")], [], [])


async def test_a_delivery_is_kept_when_the_daemon_stops_in_the_middle_of_it(tmp_path: Path, autojump_clock: Any):
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        reached = trio.Event()

        async def block(params: dict[str, Any]) -> Any:
            reached.set()
            await trio.sleep_forever()

        harness.adapter.act = block
        await add_and_send(harness, delivery())
        await reached.wait()
    async with open_harness(tmp_path / "store") as harness:
        await start(harness)
        await harness.wait_for_finished(1)
        assert harness.adapter.texts == ["text 1"]


async def test_a_delivery_that_the_disk_refuses_raises_a_storage_error(tmp_path: Path, autojump_clock: Any):
    is_refusing = False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if is_refusing and function.__name__ == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        return await inline(function, *args)

    async with open_harness(tmp_path / "store", run_sync=run_sync) as harness:
        await start(harness)
        is_refusing = True
        with pytest.raises(StorageError, match="could not write to the outbox: No space left on device"):
            await harness.add(delivery())
        assert harness.outbox.pending == []
        is_refusing = False
        await add_and_send(harness, delivery())
        await harness.wait_for_finished(1)


@pytest.mark.parametrize("failing", ["write", "remove"])
async def test_a_delivery_finishes_although_the_disk_refuses_to_mark_or_remove_its_file(
    tmp_path: Path, autojump_clock: Any, failing: str
):
    """Its file stays, so the next start may find the delivery again under the same id."""
    is_refusing = False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if is_refusing and function.__name__ == failing:
            raise OSError(errno.EIO, "Input/output error")
        return await inline(function, *args)

    async with open_harness(tmp_path / "store", run_sync=run_sync) as harness:
        await start(harness)
        if failing == "write":
            harness.adapter.act = harness.refuse
        await add_and_send(harness, delivery())
        is_refusing = True
        await harness.wait_for_finished(1)
        assert harness.finished == [("d1", "failed" if failing == "write" else "delivered")]
        assert harness.files == ["d1.json"]


class TestFiles:
    def open_files(self, tmp_path: Path) -> OutboxFiles:
        with dirfd.closing(dirfd.open_root(tmp_path)) as root:
            return OutboxFiles(root, sync=False)

    async def test_written_deliveries_are_read_back_in_order_and_removed_ones_are_gone(self, tmp_path: Path):
        files = self.open_files(tmp_path)
        whole = delivery(
            3, account_id="a", thread_id="t", text='ünï\n"x"', attempts=2, last_error="e", failed_at=5, created_at=7
        )
        told = delivery(
            4,
            session_key="claude:0b1c",
            created_at=9,
            notification=Notification(
                fact_id="f", rule="r", when="waiting", agent_id="claude", at=1, question_id="q", body="b"
            ),
        )
        plain = delivery(2, created_at=8)
        for one in (told, plain, whole):
            files.write(one)
        assert files.read() == ([whole, plain, told], [])
        files.remove("d4")
        assert (tmp_path / "outbox/d3.json").stat().st_mode & 0o777 == 0o600
        files.remove("d3")
        files.remove("d3")
        assert files.read() == ([plain], [])
        files.close()

    async def test_files_that_are_no_deliveries_are_reported_and_kept_and_temporary_files_are_removed(
        self, tmp_path: Path
    ):
        files = self.open_files(tmp_path)
        folder = tmp_path / "outbox"
        good = delivery(1)
        files.write(good)
        data = msgspec.json.encode(good)
        (folder / "torn.json").write_bytes(data[:-5])
        (folder / "other-name.json").write_bytes(data)
        (folder / "notes.txt").write_bytes(b"hello")
        (folder / "link.json").symlink_to(folder / "d1.json")
        (folder / "folder.json").mkdir()
        (folder / ".tmp-0123").write_bytes(data)
        assert files.read() == ([good], ["folder.json", "link.json", "notes.txt", "other-name.json", "torn.json"])
        assert not (folder / ".tmp-0123").exists()
        files.close()

    @given(data=st.binary(max_size=300) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
    @settings(max_examples=amount(100, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_file_with_any_content_is_reported_and_does_not_raise(self, tmp_path: Path, data: bytes | str):
        files = self.open_files(tmp_path)
        (tmp_path / "outbox/odd.json").write_bytes(data if isinstance(data, bytes) else data.encode())
        assert files.read() == ([], ["odd.json"])
        files.close()

    @check_each("bad", ["", ".", "..", "../x", "a/b", "x" * 201, "a b", "ü"])
    def test_a_delivery_id_that_is_no_file_name_is_never_written(self, tmp_path: Path, bad: str):
        files = self.open_files(tmp_path)
        good = msgspec.structs.replace(_plain_delivery(), delivery_id=bad)
        with pytest.raises(OSError, match="names no file"):
            files.write(good)
        assert list((tmp_path / "outbox").iterdir()) == []
        files.close()


_FILES = """
import os
from sessiond.delivery.channels import Delivery
from sessiond.delivery.notification import Notification
from sessiond.delivery.outbox_files import OutboxFiles
files = OutboxFiles(os.open(root, os.O_RDONLY | os.O_DIRECTORY), sync=True)
"""
_WRITE = """
fields = dict(channel="c", to="t", session_key="k", text="t", title="t", created_at=1)
told = dict(fact_id="f", rule="r", when="done", agent_id="a", at=1)
files.write(Delivery(delivery_id="d1", notification=Notification(run_id="r", **told), **fields))
"""
# A question ends with the daemon, so nothing waits for its notification to be on disk.
_WRITE_QUESTION = """
files.write(Delivery(delivery_id="d2", notification=Notification(question_id="q", **told), **fields))
"""


@pytest.mark.parametrize(
    ("code", "left"),
    [(_WRITE + _WRITE_QUESTION, {"outbox", "outbox/d1.json"}), (_WRITE + 'files.remove("d1")', {"outbox"})],
)
def test_a_power_cut_undoes_neither_an_added_nor_a_removed_delivery(tmp_path: Path, code: str, left: set[str]):
    root = tmp_path / "root"
    (root / "outbox").mkdir(parents=True)
    before = power.snapshot(root)
    calls = record(tmp_path / "shim", root, _FILES + code)
    cut = power.last_cut(before, calls)
    assert set(cut.files) == left
    assert all(json.loads(data)["deliveryId"] == "d1" for data in cut.files.values() if data is not None)


def _plain_delivery() -> Delivery:
    return Delivery(
        delivery_id="x", channel="c", to="t", session_key="agent:main:main", text="t", title="t", created_at=1
    )


async def run_slowly(function: Callable[..., Any], *args: Any) -> Any:
    """File work that takes a second and can be cancelled meanwhile."""
    await trio.sleep(1)
    return function(*args)


async def test_an_acknowledged_delivery_is_removed_even_if_the_daemon_stops_meanwhile(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store", run_sync=run_slowly) as harness:
        acknowledged = trio.Event()

        async def act(params: dict[str, Any]) -> Any:
            acknowledged.set()

        harness.adapter.act = act
        async with trio.open_nursery() as nursery:
            await nursery.start(harness.outbox.run)
            await add_and_send(harness, delivery())
            await acknowledged.wait()
            await trio.sleep(0.5)  # by now its file is being removed
            assert harness.files == ["d1.json"]
            nursery.cancel_scope.cancel()
        assert harness.files == []
        assert harness.finished == [("d1", "delivered")]


async def test_a_delivery_whose_sender_is_cancelled_while_it_is_written_stays_pending(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store", run_sync=run_slowly) as harness:
        await start(harness)
        with trio.move_on_after(0.5):
            await harness.add(delivery())
        assert harness.files == ["d1.json"]
        # Since it is pending, a second `put` with this id does not write it again, and a restart sends it.
        assert [one.delivery_id for one in harness.outbox.pending] == ["d1"]


async def test_deliveries_without_an_adapter_wait_for_one_without_attempts(tmp_path: Path, autojump_clock: Any):
    """Once, each of 8,000 deliveries to one address was compared with all the others and tried again every minute."""
    count = amount(500, 100)
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        for number in range(count):
            await add_and_send(harness, delivery(number, delivery_id=f"d{number:05d}"))
        await trio.sleep(1000)
        assert {one.attempts for one in harness.outbox.pending} == {0}
        assert len(harness.checked) == count
        harness.channels.attach("telegram", harness.adapter)
        await harness.wait_for_finished(count)
        assert harness.adapter.texts == [f"text {number}" for number in range(count)]
        assert harness.files == []


async def test_a_delivery_for_which_no_adapter_attaches_is_given_up_with_the_reason(
    tmp_path: Path, autojump_clock: Any
):
    async with open_harness(tmp_path / "store", attach=False) as harness:
        await start(harness)
        await add_and_send(harness, delivery())
        await trio.sleep(1799)
        assert harness.outbox.dead_letters == []
        await trio.sleep(2)
        [letter] = harness.outbox.dead_letters
        assert (letter.attempts, letter.last_error) == (0, "no adapter is attached for channel telegram")
