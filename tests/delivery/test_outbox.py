"""The outbox: on disk before it is sent, sent until it is acknowledged, given up in the end and kept."""

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
from support.sampling import amount
from support.supervised_runs import NOW, RunHarness, clock, inline, run_harness

from sessiond.config.settings import DeliveryConfig
from sessiond.delivery.channels import Channels, Delivery
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


class Post:
    """An outbox with one adapter."""

    def __init__(self, runs: RunHarness, outbox: Outbox, channels: Channels) -> None:
        self.home, self.outbox, self.channels = runs, outbox, channels
        self.adapter = Adapter()
        self.times: list[float] = []
        self.denied: set[str] = set()
        self.looked_at: list[str] = []  # before each attempt
        self.known = [one.delivery_id for one in outbox.pending]

    @property
    def settled(self) -> list[tuple[str, str]]:
        """Each delivery that is over, and how."""
        over = [(one, self.outbox.status(one)) for one in self.known]
        return [
            (one, status or ("skipped" if one in self.denied else "delivered"))
            for one, status in over
            if status != "pending"
        ]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.home.store.path / "outbox").iterdir())

    async def keep(self, one: Delivery) -> None:
        """Have it in the outbox."""
        self.known.append(one.delivery_id)
        await self.outbox.put(one)

    async def over(self, count: int) -> None:
        while len(self.settled) < count:  # noqa: ASYNC110 - under an autojump clock a sleep is a turn of everybody else
            await trio.sleep(0.1)

    async def fail(self, params: dict[str, Any]) -> Any:
        self.times.append(trio.current_time())
        raise RefusedByAgent("the network is down")


@asynccontextmanager
async def post(folder: Path, *, run_sync: Any = inline, attach: bool = True) -> AsyncIterator[Post]:
    async with run_harness(folder, run_sync=run_sync) as runs:
        channels = Channels(
            dict,
            environ={},
            cwd=Path("/"),
            on_attach=lambda channel: outbox.make_due(channel),  # noqa: PLW0108 - opened below
        )
        denied: set[str] = set()
        looked_at: list[str] = []
        async with open_outbox(
            runs.store,
            channels,
            clock(),
            durable=True,
            settings=DeliveryConfig,
            allowed=lambda one: looked_at.append(one.delivery_id) or one.delivery_id not in denied,  # type: ignore[func-returns-value]
        ) as outbox:
            made = Post(runs, outbox, channels)
            made.denied, made.looked_at = denied, looked_at
            if attach:
                channels.attach("telegram", made.adapter)
            yield made
            runs.nursery.cancel_scope.cancel()


async def start(made: Post) -> None:
    await made.home.nursery.start(made.outbox.run)


async def put(made: Post, one: Delivery) -> None:
    await made.keep(one)
    made.outbox.send(one.delivery_id)


async def test_a_delivery_is_on_disk_before_it_is_sent_and_gone_after_the_acknowledgement(
    tmp_path: Path, autojump_clock: Any
):
    async with post(tmp_path / "store") as made:
        await start(made)
        seen: list[list[str]] = []

        async def look(params: dict[str, Any]) -> Any:
            seen.append(made.files)
            return None

        made.adapter.act = look
        await put(made, delivery())
        await made.over(1)
        assert seen == [["d1.json"]]
        assert made.files == []
        assert made.settled == [("d1", "delivered")]
        assert made.outbox.status("d1") is None
        assert made.adapter.asked == [
            (
                "channel.deliver",
                {"deliveryId": "d1", "to": "-100", "sessionKey": "agent:main:main", "text": "text 1"},
            )
        ]


async def test_nothing_goes_out_before_send_is_said(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        await start(made)
        await made.keep(delivery())
        await trio.sleep(1000)
        assert made.adapter.asked == []
        assert made.outbox.status("d1") == "pending"
        made.outbox.send("d1")
        made.outbox.send("d1")
        await made.over(1)
        assert made.adapter.texts == ["text 1"]


async def test_the_same_id_is_the_same_delivery(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        await put(made, delivery())
        await put(made, delivery(text="another"))
        made.channels.attach("telegram", made.adapter)
        await made.over(1)
        await trio.sleep(1000)
        assert made.adapter.texts == ["text 1"]


async def test_retries_come_after_5_10_20_s_and_then_each_minute_for_30_minutes(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        await start(made)
        made.adapter.act = made.fail
        began = trio.current_time()
        await put(made, delivery())
        await made.over(1)
        times = [round(time - began) for time in made.times]
        assert times[:6] == [0, 5, 15, 35, 95, 155]
        assert times[-2:] == [1775, 1835]
        assert made.settled == [("d1", "failed")]
        assert (made.outbox.status("d1"), len(made.outbox.dead_letters)) == ("failed", 1)
        [letter] = made.outbox.dead_letters
        assert letter.last_error == "the adapter of telegram answered: the network is down"
        kept = json.loads((made.home.store.path / "outbox/d1.json").read_bytes())
        assert (kept["attempts"], kept["failedAt"]) == (len(times), NOW + round(1835_000 + began * 1000))


@pytest.mark.parametrize(("early_ms", "attempts"), [(0, 4), (1, 5)])
async def test_an_attempt_after_30_minutes_is_the_last_one(
    tmp_path: Path, autojump_clock: Any, early_ms: int, attempts: int
):
    async with post(tmp_path / "store") as made:
        await start(made)
        made.adapter.act = made.fail
        now_ms = NOW + round(trio.current_time() * 1000)
        # The fourth attempt is due after 35 seconds.
        await put(made, delivery(created_at=now_ms + 35_000 + early_ms - 30 * 60_000))
        await made.over(1)
        assert (len(made.times), made.settled) == (attempts, [("d1", "failed")])


async def test_a_dead_letter_stays_dead_over_a_restart_and_is_counted(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        await put(made, delivery())
        await made.over(1)
    async with post(tmp_path / "store") as made:
        assert [one.delivery_id for one in made.outbox.dead_letters] == ["d1"]
        await start(made)
        await made.keep(delivery())
        made.outbox.send("d1")
        await trio.sleep(1000)
        assert made.adapter.asked == []
        assert made.files == ["d1.json"]


async def test_a_lost_acknowledgement_is_asked_for_again_under_the_same_id(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        await start(made)

        async def lost(params: dict[str, Any]) -> Any:
            made.adapter.act = made.adapter.acknowledge
            raise AgentConnectionLost

        made.adapter.act = lost
        await put(made, delivery())
        await made.over(1)
        assert [params["deliveryId"] for _, params in made.adapter.asked] == ["d1", "d1"]


async def test_what_an_earlier_life_left_goes_out_at_the_start_but_what_is_on_hold(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        for number in (1, 2):
            await made.keep(delivery(number))
    async with post(tmp_path / "store") as made:
        made.outbox.hold("d2")
        made.outbox.hold("nobody knows this one")
        await start(made)
        await made.over(1)
        await trio.sleep(1000)
        assert made.adapter.texts == ["text 1"]
        made.outbox.send("d2")
        await made.over(2)
        assert made.adapter.texts == ["text 1", "text 2"]


async def test_an_adapter_that_comes_makes_what_waits_for_it_due_at_once(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        await put(made, delivery())
        await trio.sleep(36)  # the next attempt would be at 95 s
        made.channels.attach("telegram", made.adapter)
        await made.over(1)
        assert trio.current_time() == pytest.approx(36, abs=1)


async def test_an_adapter_that_comes_while_another_fails_is_asked_at_once(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        await start(made)
        newer = Adapter()

        async def leaves(params: dict[str, Any]) -> Any:
            await trio.sleep(3)
            made.channels.attach("telegram", newer)
            raise AgentConnectionLost

        made.adapter.act = leaves
        await put(made, delivery())
        await made.over(1)
        assert newer.texts == ["text 1"]
        assert trio.current_time() == pytest.approx(3, abs=1)


async def test_what_goes_to_one_addressee_goes_in_order_and_a_stubborn_one_holds_up_nobody(
    tmp_path: Path, autojump_clock: Any
):
    async with post(tmp_path / "store") as made:
        await start(made)

        async def picky(params: dict[str, Any]) -> Any:
            if params["deliveryId"] == "d1":
                raise RefusedByAgent("not this one")
            return {}

        made.adapter.act = picky
        for number in range(1, 5):
            await put(made, delivery(number))
        await put(made, delivery(5, to="-200"))
        await made.over(4)
        assert sorted(made.settled) == [(f"d{number}", "delivered") for number in range(2, 6)]
        assert [text for text in made.adapter.texts if text != "text 5"][:4] == [f"text {n}" for n in range(1, 5)]


async def test_a_session_that_may_not_send_any_more_is_passed_over(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        await put(made, delivery())
        await trio.sleep(1)
        made.denied.add("d1")
        made.channels.attach("telegram", made.adapter)
        await made.over(1)
        assert (made.settled, made.adapter.asked, made.files) == ([("d1", "skipped")], [], [])


async def test_stopping_in_the_middle_of_a_delivery_keeps_it(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store") as made:
        await start(made)
        reached = trio.Event()

        async def hang(params: dict[str, Any]) -> Any:
            reached.set()
            await trio.sleep_forever()

        made.adapter.act = hang
        await put(made, delivery())
        await reached.wait()
    async with post(tmp_path / "store") as made:
        await start(made)
        await made.over(1)
        assert made.adapter.texts == ["text 1"]


async def test_a_disk_that_refuses_is_told_to_who_puts(tmp_path: Path, autojump_clock: Any):
    refuse = False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if refuse and function.__name__ == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        return await inline(function, *args)

    async with post(tmp_path / "store", run_sync=run_sync) as made:
        await start(made)
        refuse = True
        with pytest.raises(StorageError, match="could not write to the outbox: No space left on device"):
            await made.keep(delivery())
        assert made.outbox.pending == []
        refuse = False
        await put(made, delivery())
        await made.over(1)


@pytest.mark.parametrize("failing", ["write", "remove"])
async def test_a_disk_that_refuses_later_ends_no_delivery(tmp_path: Path, autojump_clock: Any, failing: str):
    """What cannot be marked or removed is over all the same; the next start may find it again, under its id."""
    refuse = False

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if refuse and function.__name__ == failing:
            raise OSError(errno.EIO, "Input/output error")
        return await inline(function, *args)

    async with post(tmp_path / "store", run_sync=run_sync) as made:
        await start(made)
        if failing == "write":
            made.adapter.act = made.fail
        await put(made, delivery())
        refuse = True
        await made.over(1)
        assert made.settled == [("d1", "failed" if failing == "write" else "delivered")]
        assert made.files == ["d1.json"]


class TestFiles:
    def files(self, tmp_path: Path) -> OutboxFiles:
        with dirfd.closing(dirfd.open_root(tmp_path)) as root:
            return OutboxFiles(root, sync=False)

    async def test_what_was_written_is_read_again(self, tmp_path: Path):
        files = self.files(tmp_path)
        whole = delivery(
            3, account_id="a", thread_id="t", text='ünï\n"x"', attempts=2, last_error="e", failed_at=5, created_at=7
        )
        plain = delivery(2, created_at=8)
        for one in (plain, whole):
            files.write(one)
        assert files.read() == ([whole, plain], [])
        assert (tmp_path / "outbox/d3.json").stat().st_mode & 0o777 == 0o600
        files.remove("d3")
        files.remove("d3")
        assert files.read() == ([plain], [])
        files.close()

    async def test_what_is_no_delivery_is_named_and_left_alone_and_half_written_ones_go(self, tmp_path: Path):
        files = self.files(tmp_path)
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
    def test_no_file_whatever_it_holds_stops_the_others(self, tmp_path: Path, data: bytes | str):
        files = self.files(tmp_path)
        (tmp_path / "outbox/odd.json").write_bytes(data if isinstance(data, bytes) else data.encode())
        assert files.read() == ([], ["odd.json"])
        files.close()

    @pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "x" * 201, "a b", "ü"])
    def test_an_id_that_is_no_file_name_is_never_written(self, tmp_path: Path, bad: str):
        files = self.files(tmp_path)
        good = msgspec.structs.replace(_plain(), delivery_id=bad)
        with pytest.raises(OSError, match="names no file"):
            files.write(good)
        assert list((tmp_path / "outbox").iterdir()) == []
        files.close()


_FILES = """
import os
from sessiond.delivery.channels import Delivery
from sessiond.delivery.outbox_files import OutboxFiles
files = OutboxFiles(os.open(root, os.O_RDONLY | os.O_DIRECTORY), sync=True)
"""
_WRITE = """
files.write(Delivery(delivery_id="d1", channel="c", to="t", session_key="k", text="t", title="t", created_at=1))
"""


@pytest.mark.parametrize(
    ("code", "left"), [(_WRITE, {"outbox", "outbox/d1.json"}), (_WRITE + 'files.remove("d1")', {"outbox"})]
)
def test_a_power_cut_takes_back_neither_that_a_delivery_is_to_go_out_nor_that_it_is_over(
    tmp_path: Path, code: str, left: set[str]
):
    root = tmp_path / "root"
    (root / "outbox").mkdir(parents=True)
    before = power.snapshot(root)
    calls = record(tmp_path / "shim", root, _FILES + code)
    cut = power.last_cut(before, calls)
    assert set(cut.files) == left
    assert all(json.loads(data)["deliveryId"] == "d1" for data in cut.files.values() if data is not None)


def _plain() -> Delivery:
    return Delivery(
        delivery_id="x", channel="c", to="t", session_key="agent:main:main", text="t", title="t", created_at=1
    )


async def _slow(function: Callable[..., Any], *args: Any) -> Any:
    """File work that takes a second, and that a cancellation can reach."""
    await trio.sleep(1)
    return function(*args)


async def test_what_was_acknowledged_goes_from_the_disk_though_the_daemon_stops_just_then(
    tmp_path: Path, autojump_clock: Any
):
    async with post(tmp_path / "store", run_sync=_slow) as made:
        acknowledged = trio.Event()

        async def act(params: dict[str, Any]) -> Any:
            acknowledged.set()

        made.adapter.act = act
        async with trio.open_nursery() as nursery:
            await nursery.start(made.outbox.run)
            await put(made, delivery())
            await acknowledged.wait()
            await trio.sleep(0.5)  # it is being removed
            assert made.files == ["d1.json"]
            nursery.cancel_scope.cancel()
        assert made.files == []
        assert made.settled == [("d1", "delivered")]


async def test_a_delivery_that_is_being_written_when_its_sender_is_cancelled_is_known(
    tmp_path: Path, autojump_clock: Any
):
    async with post(tmp_path / "store", run_sync=_slow) as made:
        await start(made)
        with trio.move_on_after(0.5):
            await made.keep(delivery())
        assert made.files == ["d1.json"]
        # On disk and known: what is put again under this id is not written twice, and a restart sends it.
        assert [one.delivery_id for one in made.outbox.pending] == ["d1"]


async def test_what_nobody_can_deliver_costs_no_attempt_and_waits_for_somebody(tmp_path: Path, autojump_clock: Any):
    """8,000 for one address were each compared with all the others, and each was tried again every minute."""
    count = amount(500, 100)
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        for number in range(count):
            await put(made, delivery(number, delivery_id=f"d{number:05d}"))
        await trio.sleep(1000)
        assert {one.attempts for one in made.outbox.pending} == {0}
        assert len(made.looked_at) == count
        made.channels.attach("telegram", made.adapter)
        await made.over(count)
        assert made.adapter.texts == [f"text {number}" for number in range(count)]
        assert made.files == []


async def test_what_nobody_came_for_is_given_up_with_the_reason(tmp_path: Path, autojump_clock: Any):
    async with post(tmp_path / "store", attach=False) as made:
        await start(made)
        await put(made, delivery())
        await trio.sleep(1799)
        assert made.outbox.dead_letters == []
        await trio.sleep(2)
        [letter] = made.outbox.dead_letters
        assert (letter.attempts, letter.last_error) == (0, "no adapter is attached for channel telegram")
