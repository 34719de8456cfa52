import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sessiond.errors import Overloaded
from sessiond.model.caller import OWNER, Caller
from sessiond.rpc.budget import MIB, Budget, Budgets
from sessiond.rpc.method import Context


class Takers:
    """Tasks that take shares of one budget, and the shares they got."""

    def __init__(self, budget, nursery):
        self.budget, self.nursery, self.got = budget, nursery, {}

    async def start_taking(self, name, holder, size):
        async def take():
            self.got[name] = await self.budget.take(holder, size)

        self.nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()

    def names_served(self):
        return list(self.got)


async def test_a_holder_at_its_bound_waits_without_blocking_other_holders(autojump_clock):
    async with trio.open_nursery() as nursery:
        takers = Takers(Budget(100, 40), nursery)
        for name, holder, size in (("a1", "a", 40), ("a2", "a", 1), ("b", "b", 40), ("a3", "a", 1)):
            await takers.start_taking(name, holder, size)
        assert takers.names_served() == ["a1", "b"]
        takers.got["a1"].shrink(39)
        await trio.testing.wait_all_tasks_blocked()
        assert takers.names_served() == ["a1", "b", "a2"], "in the order in which they came"
        takers.got["a1"].release()
        takers.got["a1"].release()
        await trio.testing.wait_all_tasks_blocked()
        assert takers.names_served() == ["a1", "b", "a2", "a3"] and takers.budget.used_bytes == 42


async def test_a_large_request_is_not_starved_by_small_ones(autojump_clock):
    async with trio.open_nursery() as nursery:
        takers = Takers(Budget(100, 100), nursery)
        await takers.start_taking("a", "a", 60)
        await takers.start_taking("large", "b", 80)
        await takers.start_taking("small", "c", 10)
        assert takers.names_served() == ["a"]
        takers.got["a"].release()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(takers.names_served()) == ["a", "large", "small"]


async def test_a_request_over_a_holders_bound_gets_the_whole_bound():
    share = await Budget(100, 40).take("a", 1000)
    assert share.size == 40


async def test_a_wait_times_out_or_is_cancelled_without_leaving_anything_behind(autojump_clock):
    budget = Budget(10, 10, patience_s=30)
    share = await budget.take("a", 10)
    before = trio.current_time()
    with pytest.raises(Overloaded):
        await budget.take("b", 1)
    assert trio.current_time() - before == 30
    with trio.move_on_after(1) as gone:
        await budget.take("b", 1)
    assert gone.cancelled_caught
    share.release()
    assert (budget.used_bytes, budget._waiting, budget._held) == (0, {}, {})


async def test_a_waiter_cancelled_while_its_share_is_granted_gives_it_back():
    budget = Budget(10, 10)
    share = await budget.take("a", 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.take, "b", 10)
        await trio.testing.wait_all_tasks_blocked()
        # Cancelled first: the cancellation is what wakes the task, and by then its share is granted.
        nursery.cancel_scope.cancel()
        share.release()
    assert (budget.used_bytes, budget._waiting, budget._held) == (0, {}, {})


async def test_all_connections_of_a_token_are_one_holder(autojump_clock):
    budgets = Budgets(patience_s=1)
    caller = Caller(kind="token", scopes=frozenset(["read"]), token_id="0" * 32)
    await budgets.take(caller, "one connection", 40 * MIB)
    with pytest.raises(Overloaded):
        await budgets.take(caller, "another", 9 * MIB)
    other = Caller(kind="token", scopes=frozenset(["read"]), token_id="1" * 32)
    assert (await budgets.take(other, "another", 9 * MIB)).size == 9 * MIB


@given(st.data())
def test_no_order_of_taking_and_releasing_exceeds_the_bounds(data):
    async def try_one_order():
        budget, live = Budget(50, 20), []

        async def take_share(holder, size, cancelled):
            with trio.CancelScope() as scope:
                if cancelled:
                    scope.cancel()
                live.append((holder, await budget.take(holder, size)))

        async with trio.open_nursery() as nursery:
            for _ in range(data.draw(st.integers(1, 20))):
                nursery.start_soon(take_share, data.draw(st.sampled_from("abcd")), data.draw(st.integers(1, 30)), False)
                if data.draw(st.booleans()):
                    nursery.start_soon(take_share, "a", 5, True)
                await trio.testing.wait_all_tasks_blocked()
                held = {holder: sum(s.size for h, s in live if h == holder) for holder in "abcd"}
                assert budget.used_bytes == sum(held.values()) <= 50 and max(held.values()) <= 20
                if live and data.draw(st.booleans()):
                    live[data.draw(st.integers(0, len(live) - 1))][1].release()
            await trio.testing.wait_all_tasks_blocked()
            while any(share.size for _, share in live) or budget._waiting:
                for _, share in live:
                    share.release()
                await trio.testing.wait_all_tasks_blocked()
        assert (budget.used_bytes, budget._waiting, budget._held) == (0, {}, {})

    trio.run(try_one_order)


async def test_a_handler_without_a_connection_has_a_share_but_no_peer() -> None:
    budgets = Budgets()
    context = Context(caller=OWNER, peer=None, services=None, budgets=budgets)
    await context.reserve(10)
    assert context.share is not None and context.share.size == 3 * 10
    context.hold_share_until_sent(5)  # whoever sends it holds the share itself
    assert budgets.owner.used_bytes == 30
    context.release(gone=True)
    assert budgets.owner.used_bytes == 0
    with pytest.raises(AssertionError, match="without a connection"):
        context.require_peer()
