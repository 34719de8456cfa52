"""One session's message to another: where it comes from, set by the daemon, its loop guards, and what follows it.

The one door for all of them, whichever method brought the message (`sessions_send`, `chat.send`, `sessions.steer`):
`stamp` makes of a request one that says who sent it, and counts it. Knows who sends and who gets it; whether that is
allowed was settled before, and waiting is the caller's business.
Source: runs.md, "sessions_send".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.rate_limit import RateLimit
from sessiond.conversations.reply_back import provenance_of
from sessiond.errors import Overloaded
from sessiond.model.message import user_message
from sessiond.policy.replyback import ConversationFacts, inter_session_preamble
from sessiond.runs.follow_up import ConversationTopic, FollowUp
from sessiond.runs.run import Run, RunRequest, payload_hash
from sessiond.runs.supervisor import RunSupervisor
from sessiond.store.catalog import Session


class Sender(msgspec.Struct, frozen=True):
    """Who sends: the key that the caller acts as, its session where there is one, and the run of it that does so.

    `counted_as` is whom the rate is counted for: a session's key, or the token of a program that is no session. The
    owner has none of all this. `waiter` is the run only where it sends itself: somebody outside with a token for the
    session waits for himself.
    """

    key: str | None = None
    session: Session | None = None
    run: Run | None = None
    counted_as: str | None = None
    waiter: Run | None = None


def _nobody() -> None:
    pass


class SentMessage(msgspec.Struct, frozen=True):
    """The run that has the message. `ancestor_busy`: it begins only after the sender's own run has ended."""

    run_id: str
    ancestor_busy: bool


class MessageSender:
    """Accepts messages between sessions."""

    def __init__(
        self, supervisor: RunSupervisor, announcing: AnnounceStep, config: Callable[[], Config], clock: Clock, ids: Ids
    ) -> None:
        self._supervisor, self._announcing = supervisor, announcing
        self._config, self._clock, self._ids = config, clock, ids
        self._traffic = RateLimit()

    async def send(
        self,
        source: Sender,
        target: Session,
        text: str,
        idempotency_key: str | None,
        *,
        freshened: Callable[[Session], Awaitable[Session]] | None = None,
        in_line: Callable[[], None] = _nobody,
    ) -> SentMessage:
        """The message, accepted as a run of the target. Overloaded where sessions go on for too long or too fast.

        `freshened` gives the session that a new message goes to where the conversation is over by its age; `in_line` is
        called once the message has its place.
        """
        payload = payload_hash({"method": "sessions_send", "message": text, "source": source.key})
        busy = self._waits_on_sender(source, target)
        if idempotency_key is not None:
            known = self._supervisor.run_of_key(target, idempotency_key, payload)
            if known is not None:
                in_line()
                await self._supervisor.stored(known)
                return SentMessage(known, ancestor_busy=busy)
        self.check(source, target)
        if freshened is not None:
            target = await freshened(target)
        request = RunRequest(
            text=text,
            message=user_message(text, self._clock.wall_ms()),
            timeout_s=self._config().agents.defaults.run_timeout_seconds or None,
        )
        if idempotency_key is not None:
            request = replace(request, idempotency_key=idempotency_key, payload=payload)
        request = self.stamp(source, target, request, "sessions_send")
        return SentMessage(await self._supervisor.accept_once(target, request, in_line=in_line), ancestor_busy=busy)

    def check(self, source: Sender, target: Session) -> tuple[str, int]:
        """The trace of a message that is to be sent and its number in it. Overloaded where it may not go on."""
        trace = self._trace(source)
        if source.counted_as is not None:
            most = self._config().limits.messages_per_minute
            self._traffic.check(source.counted_as, target.key, self._clock.monotonic(), most)
        return trace

    def stamp(self, source: Sender, target: Session, request: RunRequest, tool: str) -> RunRequest:
        """The request as another's message: it says where it comes from, counts, and opens a conversation.

        For the moment before it is accepted. Overloaded as in `check`.
        """
        trace_id, hops = self.check(source, target)
        channel, target_channel = self._announcing.channel_of(source.key), self._announcing.channel_of(target.key)
        topic = ConversationTopic(
            conversation=ConversationFacts(
                target_key=target.key,
                request="",
                requester_key=source.key,
                requester_channel=channel,
                target_channel=target_channel,
                max_turns=self._config().session.agent_to_agent.max_ping_pong_turns,
            ),
            trace_id=trace_id,
            hops=hops,
            requester_session_id=source.session.session_id if source.session is not None else None,
        )
        preamble = inter_session_preamble(
            source.key,
            target.key,
            source_channel=channel,
            target_channel=target_channel,
            tool=tool,
            from_owner=source.counted_as is None,
        )
        if source.counted_as is not None:
            self._traffic.count(source.counted_as, target.key, self._clock.monotonic())
        return replace(
            request,
            message={**request.message, "provenance": provenance_of(trace_id, hops, source.key, channel, tool)},
            context="\n".join(filter(None, (preamble, request.context))),
            # The announcement delivers, where there is something to deliver: `deliver` asks for no more than that.
            follow=FollowUp(talk=topic),
        )

    def signature(self, source: Sender, tool: str) -> dict[str, Any]:
        """The provenance of a message that is only put into a transcript: it starts nothing, and is no hop."""
        trace_id, hops = self._trace(source)
        return provenance_of(trace_id, hops, source.key, self._announcing.channel_of(source.key), tool)

    def _trace(self, source: Sender) -> tuple[str, int]:
        """The trace this message belongs to and its number in it, by what the sender's own run was started with."""
        before = source.run.request.message.get("provenance") if source.run is not None else None
        facts = before if isinstance(before, dict) else {}
        trace_id, passed = facts.get("traceId"), facts.get("hops")
        hops = (passed if isinstance(passed, int) else 0) + 1
        most = self._config().limits.max_hops
        if hops > most:
            raise Overloaded(
                f"this message would be number {hops} in a chain that began with another one, and {most} are allowed;"
                " end the conversation",
                code="too_many_hops",
                limit="limits.maxHops",
                value=most,
                retryAfterMs=60_000,
            )
        return (trace_id if isinstance(trace_id, str) else self._ids.uuid()), hops

    def _waits_on_sender(self, source: Sender, target: Session) -> bool:
        live = self._supervisor.current(target.key)
        return live is not None and source.waiter is not None and waits_on(self._supervisor, live, source.waiter)


def waits_on(supervisor: RunSupervisor, run: Run, other: Run) -> bool:
    """Whether `run` cannot end before `other` has: it is that run, waits for it, or for one that does.

    A run that is queued waits for all that are before it in its session.
    """
    passed: set[str] = set()
    lines: dict[str, _Line] = {}
    ahead = [run]
    while ahead:
        one = ahead.pop()
        if one is other:
            return True
        if one.run_id in passed:
            continue
        passed.add(one.run_id)
        awaited = (supervisor.registry.live.get(run_id) for run_id in one.waits_for)
        ahead += [found for found in awaited if found is not None]
        if one.key not in lines:
            lines[one.key] = _Line(supervisor.queues.runs_of(one.key))
        ahead += lines[one.key].before(one)
    return False


class _Line:
    """The runs of a session in their order. Each is given once, however many are behind it: a thousand may be."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs, self._given = runs, 0
        self._places = {run.run_id: place for place, run in enumerate(runs)}

    def before(self, run: Run) -> list[Run]:
        """The runs that have to end before this one begins, but for those that were given before."""
        begin, end = self._given, self._places.get(run.run_id, 0)
        self._given = max(begin, end)
        return self._runs[begin:end]
