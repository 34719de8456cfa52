from hypothesis import given
from hypothesis import strategies as st

from sessiond.events.subscription import MAX_QUEUED_BYTES, Subscription
from sessiond.model.event import TEXT_METHODS, LiveEvent, approximate_bytes


class BlockedSink:
    """A sink that accepts no event."""

    def ready(self):
        return False

    def write(self, event):
        raise AssertionError

    async def room(self):
        raise AssertionError


def delta(run, size, method="session.delta"):
    return LiveEvent("agent:main:main", method, {"runId": run, "text": "d" * size}, size=size)


def test_300_mb_of_unsent_deltas_are_counted_and_not_kept():
    subscription = Subscription(BlockedSink(), limit=1024)
    subscription.keys["agent:main:main"] = lambda *_: True
    for _ in range(300):
        subscription.offer(delta("r", 1_000_000))
    queued = [subscription.take() for _ in range(len(subscription.queue))]
    assert sum(map(approximate_bytes, queued)) <= MAX_QUEUED_BYTES
    assert [event.size for event in queued] == [1_000_000] * 4 + [0]
    assert queued[-1].fields == {"runId": "r", "text": "", "omitted": {"bytes": 296_000_000}}


def test_a_tool_event_that_does_not_fit_keeps_its_identity():
    subscription = Subscription(BlockedSink(), limit=1024)
    subscription.keys["agent:main:main"] = lambda *_: True
    fields = {"runId": "r", "phase": "end", "toolCallId": "c", "name": "read", "result": "x" * 5_000_000}
    subscription.offer(LiveEvent("agent:main:main", "session.tool", fields, size=5_000_100))
    kept = {name: fields[name] for name in ("runId", "phase", "toolCallId", "name")}
    assert subscription.take().fields == {**kept, "omitted": {"bytes": 5_000_100}}


PIECES = st.tuples(st.sampled_from("abc"), st.integers(0, 3_000_000), st.sampled_from(TEXT_METHODS))


@given(st.lists(PIECES, max_size=60), st.integers(1, 20))
def test_every_byte_is_queued_or_counted_as_omitted(deltas, limit):
    subscription = Subscription(BlockedSink(), limit=limit)
    subscription.keys["agent:main:main"] = lambda *_: True
    for piece in deltas:
        subscription.offer(delta(*piece))
        assert len(subscription.queue) <= limit
        assert (
            subscription._queued_bytes
            == sum(map(approximate_bytes, subscription.queue))
            <= MAX_QUEUED_BYTES + 400 * limit
        )
    if limit > 3 * len(TEXT_METHODS):
        counted = sum(event.fields.get("omitted", {}).get("bytes", 0) + event.size for event in subscription.queue)
        assert counted == sum(size for _, size, _ in deltas)
