"""sessions_send: one session's message to another, with where it comes from set by the daemon, and its loop guards.

Knows who sends and who gets it; whether that is allowed was settled before, and waiting is the caller's business.
Source: runs.md, "sessions_send".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from sessiond.clock import Clock, Ids
from sessiond.config import Config
from sessiond.errors import Overloaded
from sessiond.model.message import user_message
from sessiond.policy.replyback import Conversation, inter_session_preamble
from sessiond.runs.announcing import Announcing
from sessiond.runs.conversation import provenance_of
from sessiond.runs.run import Request, Run, payload_hash
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runs.talk import Topic
from sessiond.runs.traffic import Traffic
from sessiond.store.catalog import Session


class Source(msgspec.Struct, frozen=True):
    """Who sends: a session, and the run of it that does so. The owner has neither."""

    session: Session | None = None
    run: Run | None = None


class Sent(msgspec.Struct, frozen=True):
    """The run that has the message. `ancestor_busy`: it begins only after the sender's own run has ended."""

    run_id: str
    ancestor_busy: bool


class Sends:
    """Accepts messages between sessions."""

    def __init__(
        self, supervisor: RunSupervisor, announcing: Announcing, config: Callable[[], Config], clock: Clock, ids: Ids
    ) -> None:
        self._supervisor, self._announcing = supervisor, announcing
        self._config, self._clock, self._ids = config, clock, ids
        self._traffic = Traffic()

    async def send(
        self,
        source: Source,
        target: Session,
        text: str,
        idempotency_key: str | None,
        *,
        freshened: Callable[[Session], Awaitable[Session]] | None = None,
    ) -> Sent:
        """The message, accepted as a run of the target. Overloaded where sessions go on for too long or too fast.

        `freshened` gives the session that a new message goes to where the conversation is over by its age.
        """
        sender = source.session.key if source.session is not None else None
        payload = payload_hash({"method": "sessions_send", "message": text, "source": sender})
        busy = self._waits_on_sender(source, target)
        if idempotency_key is not None:
            known = self._supervisor.known(target, idempotency_key, payload)
            if known is not None:
                await self._supervisor.stored(known)
                return Sent(known, ancestor_busy=busy)
        trace_id, hops = self._trace(source)
        now_s, limits = self._clock.monotonic(), self._config().limits
        if sender is not None:
            self._traffic.check(sender, target.key, now_s, limits.messages_per_minute)
        if freshened is not None:
            target = await freshened(target)
        request = self._request(source, target, text, trace_id, hops)
        if idempotency_key is not None:
            request = msgspec.structs.replace(request, idempotency_key=idempotency_key, payload=payload)
        if sender is not None:
            self._traffic.count(sender, target.key, now_s)
        return Sent(await self._supervisor.accept_once(target, request), ancestor_busy=busy)

    def _trace(self, source: Source) -> tuple[str, int]:
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

    def _request(self, source: Source, target: Session, text: str, trace_id: str, hops: int) -> Request:
        config = self._config()
        sender = source.session
        sender_key = sender.key if sender is not None else None
        channel, target_channel = self._announcing.channel_of(sender_key), self._announcing.channel_of(target.key)
        topic = Topic(
            conversation=Conversation(
                target_key=target.key,
                request="",
                requester_key=sender_key,
                requester_channel=channel,
                target_channel=target_channel,
                max_turns=config.session.agent_to_agent.max_ping_pong_turns,
            ),
            trace_id=trace_id,
            hops=hops,
            requester_session_id=sender.session_id if sender is not None else None,
        )
        provenance = provenance_of(trace_id, hops, sender_key, channel)
        return Request(
            text=text,
            message=user_message(text, self._clock.wall_ms(), provenance),
            context=inter_session_preamble(
                sender_key, target.key, source_channel=channel, target_channel=target_channel
            ),
            timeout_s=config.agents.defaults.run_timeout_seconds or None,
            follow={"talk": msgspec.to_builtins(topic)},
        )

    def _waits_on_sender(self, source: Source, target: Session) -> bool:
        live = self._supervisor.current(target.key)
        return live is not None and source.run is not None and waits_on(self._supervisor, live, source.run)


def waits_on(supervisor: RunSupervisor, run: Run, other: Run) -> bool:
    """Whether `run` cannot end before `other` has: it is that run, waits for it, or for one that does.

    A run that is queued waits for all that are before it in its session.
    """
    passed: set[str] = set()
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
        ahead += supervisor.queues.before(one)
    return False
