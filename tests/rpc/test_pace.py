import itertools

import trio
from support.patience import PATIENCE_S

from sessiond.rpc.pace import Pace


async def test_work_that_does_not_fit_into_a_turn_waits_for_the_next_one():
    """Each piece uses up the time of a turn: one piece runs in each turn, and other tasks run in between."""
    now = [0.0]
    pace, order, turns = Pace(0.004, lambda: now[0]), [], []

    async def piece(number):
        await pace.turn()
        order.append(number)
        now[0] += 0.004

    async def note_turns():
        while len(order) < 50:
            turns.append(len(order))
            await trio.lowlevel.checkpoint()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_turns)
            for number in range(50):
                nursery.start_soon(piece, number)
    assert sorted(order) == list(range(50))
    assert all(after - before <= 2 for before, after in itertools.pairwise(turns)), turns


async def test_quick_pieces_do_not_wait_and_a_cancelled_waiter_is_removed():
    now = [0.0]
    pace = Pace(0.004, lambda: now[0])
    with trio.fail_after(PATIENCE_S):
        for _ in range(100):
            await pace.turn()
        now[0] += 1
        with trio.CancelScope() as scope:
            scope.cancel()
            await pace.turn()
        await pace.turn()
    assert not pace._waiting
