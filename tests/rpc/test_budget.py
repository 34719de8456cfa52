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
    """Tasks that take shares of one budget, and what they have."""

    def __init__(self, budget, nursery):
        self.budget, self.nursery, self.got = budget, nursery, {}

    async def want(self, name, holder, size):
        async def take():
            self.got[name] = await self.budget.take(holder, size)

        self.nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()

    def names(self):
        return list(self.got)


async def test_a_holder_at_its_bound_waits_and_holds_up_nobody_else(autojump_clock):
    async with trio.open_nursery() as nursery:
        takers = Takers(Budget(100, 40), nursery)
        for name, holder, size in (("a1", "a", 40), ("a2", "a", 1), ("b", "b", 40), ("a3", "a", 1)):
            await takers.want(name, holder, size)
        assert takers.names() == ["a1", "b"]
        takers.got["a1"].shrink(39)
        await trio.testing.wait_all_tasks_blocked()
        assert takers.names() == ["a1", "b", "a2"], "in the order in which they came"
        takers.got["a1"].release()
        takers.got["a1"].release()
        await trio.testing.wait_all_tasks_blocked()
        assert takers.names() == ["a1", "b", "a2", "a3"] and takers.budget.used_bytes == 42


async def test_a_large_one_is_not_passed_by_small_ones_for_ever(autojump_clock):
    async with trio.open_nursery() as nursery:
        takers = Takers(Budget(100, 100), nursery)
        await takers.want("a", "a", 60)
        await takers.want("large", "b", 80)
        await takers.want("small", "c", 10)
        assert takers.names() == ["a"]
        takers.got["a"].release()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(takers.names()) == ["a", "large", "small"]


async def test_more_than_a_holder_may_have_is_all_that_it_may_have():
    share = await Budget(100, 40).take("a", 1000)
    assert share.size == 40


async def test_a_wait_has_an_end_and_leaves_nothing(autojump_clock):
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


async def test_one_who_is_cancelled_in_the_moment_of_its_turn_gives_it_back():
    budget = Budget(10, 10)
    share = await budget.take("a", 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.take, "b", 10)
        await trio.testing.wait_all_tasks_blocked()
        # First the cancellation: what wakes the task is that, and by then it was granted.
        nursery.cancel_scope.cancel()
        share.release()
    assert (budget.used_bytes, budget._waiting, budget._held) == (0, {}, {})


async def test_a_token_is_one_holder_on_all_its_connections(autojump_clock):
    budgets = Budgets(patience_s=1)
    caller = Caller(kind="token", scopes=frozenset(["read"]), token_id="0" * 32)
    await budgets.take(caller, "one connection", 40 * MIB)
    with pytest.raises(Overloaded):
        await budgets.take(caller, "another", 9 * MIB)
    other = Caller(kind="token", scopes=frozenset(["read"]), token_id="1" * 32)
    assert (await budgets.take(other, "another", 9 * MIB)).size == 9 * MIB


@given(st.data())
def test_no_order_of_taking_and_giving_back_goes_beyond_the_bounds(data):
    async def play():
        budget, live = Budget(50, 20), []

        async def one(holder, size, cancelled):
            with trio.CancelScope() as scope:
                if cancelled:
                    scope.cancel()
                live.append((holder, await budget.take(holder, size)))

        async with trio.open_nursery() as nursery:
            for _ in range(data.draw(st.integers(1, 20))):
                nursery.start_soon(one, data.draw(st.sampled_from("abcd")), data.draw(st.integers(1, 30)), False)
                if data.draw(st.booleans()):
                    nursery.start_soon(one, "a", 5, True)
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

    trio.run(play)


async def test_a_handler_without_a_connection_has_a_share_and_no_peer() -> None:
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
