"""Memory and time of batches and long messages: the answers of a batch are bounded, shares of the budget are released,
and other tasks get their turns."""

import msgspec
import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S

from sessiond.rpc.limits import Limits


def batch(*calls):
    return [{"jsonrpc": "2.0", "id": number, "method": name, "params": params} for number, (name, params) in calls]


async def test_an_answer_over_the_size_limit_of_a_batch_is_an_error_and_the_others_are_kept(connect):
    limits = Limits(max_batch_answer_bytes=5000)
    large = {"sessionKey": "x" * 2000}
    async with connect(limits=limits) as client:
        await client.send(batch(*enumerate([("echo", large)] * 5 + [("ping", {})])))
        answers = {answer["id"]: answer for answer in await client.line()}
    assert sorted(answers) == [0, 1, 2, 3, 4, 5]
    assert [number for number, answer in answers.items() if "result" in answer] == [0, 1, 5]
    assert {answers[number]["error"]["code"] for number in (2, 3, 4)} == {-32005}


async def test_other_tasks_run_between_the_members_of_a_long_batch(connect):
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        now = [0.0]
        # Each reading of the clock is past the end of a turn.
        client.dispatcher.pace._now = lambda: now.__setitem__(0, now[0] + 1) or now[0]
        await client.send(batch(*enumerate([("ping", {})] * 1000)))
        assert len(await client.line()) == 1000
        assert turns >= 1000
        nursery.cancel_scope.cancel()


async def test_a_long_message_holds_its_share_of_the_budget_until_it_is_answered(connect):
    async with connect() as client:
        budget = client.dispatcher.budgets.owner
        text = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "promised"}) + b" " * 400_000 + b"\n"
        await client.send(text[:300_000])
        with trio.fail_after(PATIENCE_S):
            while not budget.used_bytes:  # noqa: ASYNC110 - the kernel has a part in it
                await trio.sleep(0.001)
        assert budget.used_bytes == 3 * Limits().max_frame_bytes
        await client.send(text[300_000:])
        await client.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        assert (await client.line())["id"] == 2
        assert budget.used_bytes < 1000, "only the short request in flight is left"
        long = {"jsonrpc": "2.0", "id": 3, "method": "echo", "params": {"sessionKey": "x" * 400_000}}
        assert len((await client.call("echo", long["params"], 3))["result"]["sessionKey"]) == 400_000
        client.services.promises[0].settle_with({})
        await client.call("ping", request_id=4)
        await client.line()
        assert budget.used_bytes == 0


@pytest.mark.parametrize("together", [False, True])
async def test_the_budget_reserved_for_answers_is_released_when_they_are_sent(connect, together):
    """The answers are larger than the socket's buffer, so that they are queued for a while."""
    async with connect() as client:
        budget = client.dispatcher.budgets.owner
        calls = batch(*enumerate([("large", {"size": 2_000_000})] * 3))
        await client.send(*([calls] if together else calls))
        with trio.fail_after(PATIENCE_S):
            while not budget.used_bytes:  # noqa: ASYNC110 - the kernel has a part in it
                await trio.sleep(0.001)
            answers = await client.line() if together else await client.lines(3)
            assert sorted(answer["id"] for answer in answers) == [0, 1, 2]
            while budget.used_bytes:  # noqa: ASYNC110
                await trio.sleep(0.001)


async def test_a_long_message_that_is_never_completed_releases_its_share(connect):
    async with connect() as client:
        budget = client.dispatcher.budgets.owner
        # The client leaves this answer unread: its close then breaks the connection instead of ending its half.
        await client.send({"jsonrpc": "2.0", "id": 0, "method": "ping"}, b'{"jsonrpc":"2.0","id":1,' + b" " * 300_000)
        with trio.fail_after(PATIENCE_S):
            while not budget.used_bytes:  # noqa: ASYNC110 - the kernel has a part in it
                await trio.sleep(0.001)
            client.peer.nursery.cancel_scope.cancel()  # as a revoked token, or a broken connection, ends it
            await client.ended.wait()
        assert budget.used_bytes == 0


async def test_other_tasks_run_between_large_messages_that_arrive_together(connect):
    turns, taken = [0], []

    async def count_turns():
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async with connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        accept = client.dispatcher.accept
        client.dispatcher.accept = lambda *args: (taken.append(turns[0]), accept(*args))
        echo = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"sessionKey": "x" * 5000}}
        await client.send(b"".join(msgspec.json.encode(echo) + b"\n" for _ in range(10)))
        for _ in range(10):
            await client.line()
        assert len(set(taken)) >= 5, (
            "the counting task runs before or after us in a turn: at most two messages see the same count"
        )
        nursery.cancel_scope.cancel()


async def test_a_batch_whose_connection_is_cut_while_it_is_parsed_releases_its_share(connect):
    """One member has its answer, another is being parsed: the answers are never sent."""
    begun = 0

    async def run(work):
        nonlocal begun
        begun += 1
        if begun == 2:  # the first work is splitting the batch
            await trio.sleep_forever()
        return work()

    async with connect() as client:
        client.dispatcher.run_in_thread = run
        budget = client.dispatcher.budgets.owner
        await client.send(batch((0, ("large", {"size": 1000})), (1, ("echo", {"sessionKey": "x" * 300_000}))))
        with trio.fail_after(PATIENCE_S):
            while begun < 2:  # noqa: ASYNC110 - the kernel has a part in it
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
            assert budget.used_bytes
            client.peer.nursery.cancel_scope.cancel()  # as a revoked token, or a broken connection, ends it
            while budget.used_bytes:  # noqa: ASYNC110
                await trio.sleep(0.001)
