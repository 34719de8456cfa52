"""The provenance of messages, set by the daemon from their sender, and the loop guards: hops and rate limit.

Source: runs.md, "sessions_send"; store.md, "Messages".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.rate_limit import RateLimit
from sessiond.errors import Overloaded
from sessiond.model.machine_sender import MachineSender
from sessiond.policy.replyback import ConversationFacts, inter_session_preamble
from sessiond.runs.follow_up import ConversationTopic, FollowUp
from sessiond.runs.run import Run, RunRequest
from sessiond.store.catalog import Session


class Sender(msgspec.Struct, frozen=True):
    """The sender of a message: the key that the caller acts as, its session, and the run whose token it used, if any.

    `counted_as` identifies the sender for the rate limit: a session's key, or the token of a program without a session.
    All fields are None for the owner. `machine` is set for a message of another machine. `waiter` is the run only if
    the run itself sends and waits; a program outside with a token for the session does not make the session's run wait.
    """

    key: str | None = None
    session: Session | None = None
    run: Run | None = None
    counted_as: str | None = None
    waiter: Run | None = None
    machine: MachineSender | None = None


class ProvenanceStamp:
    """Adds the provenance to messages between sessions; refuses chains that are too long and too many messages."""

    def __init__(self, announcing: AnnounceStep, config: Callable[[], Config], clock: Clock, ids: Ids) -> None:
        self._announcing, self._config, self._clock, self._ids = announcing, config, clock, ids
        self._rate_limit = RateLimit()

    def check(self, source: Sender, target: Session) -> tuple[str, int]:
        """`(trace id, hops)` of a message from `source`. Overloaded if a loop guard refuses it. Counts nothing."""
        trace = self._trace(source)
        if source.counted_as is not None:
            most = self._config().limits.messages_per_minute
            self._rate_limit.check(source.counted_as, target.key, self._clock.monotonic(), most)
        return trace

    def stamp(self, source: Sender, target: Session, request: RunRequest, tool: str) -> RunRequest:
        """The request with provenance, preamble and the conversation that follows; counts it for the rate limit.

        Call it right before the message is accepted. Overloaded as in `check`.
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
                # The turns of a conversation between machines are counted where it began: a turn is a message here.
                max_turns=0 if source.machine else self._config().session.agent_to_agent.max_ping_pong_turns,
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
            machine=source.machine.name if source.machine is not None else None,
            key_there=source.machine.session_key if source.machine is not None else None,
        )
        if source.counted_as is not None:
            self._rate_limit.count(source.counted_as, target.key, self._clock.monotonic())
        return replace(
            request,
            message={
                **request.message,
                "provenance": provenance_of(trace_id, hops, source.key, channel, tool, machine=source.machine),
            },
            context="\n".join(filter(None, (preamble, request.context))),
            # Replaces `deliver`: the announce step of the conversation delivers.
            follow=FollowUp(talk=topic),
        )

    def signature(self, source: Sender, tool: str) -> dict[str, Any]:
        """The provenance of a message that is only appended to a transcript: it starts no run and is not counted."""
        trace_id, hops = self._trace(source)
        channel = self._announcing.channel_of(source.key)
        return provenance_of(trace_id, hops, source.key, channel, tool, machine=source.machine)

    def _trace(self, source: Sender) -> tuple[str, int]:
        """`(trace id, hops)` of a message, continuing the trace of the message that started the sender's run."""
        before = source.run.request.message.get("provenance") if source.run is not None else None
        facts = before if isinstance(before, dict) else {}
        trace_id, passed = facts.get("traceId"), facts.get("hops")
        if source.machine is not None:
            trace_id, passed = source.machine.trace_id, source.machine.hops
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


def provenance_of(
    trace_id: str,
    hops: int,
    source_key: str | None,
    source_channel: str | None,
    tool: str = "sessions_send",
    *,
    machine: MachineSender | None = None,
) -> dict[str, Any]:
    """The provenance of a message that was sent with `tool`, perhaps on another machine.

    `hops` counts the messages that led to this one, itself included; all of them have the same trace id.
    Source: store.md, "Messages"; protocol.md, "Who creates a session".
    """
    provenance: dict[str, Any] = {"kind": "inter_session"}
    if source_key is not None:
        provenance["sourceSessionKey"] = source_key
        if source_channel is not None:
            provenance["sourceChannel"] = source_channel
    if machine is not None:
        provenance |= machine.provenance()
    return {**provenance, "sourceTool": tool, "hops": hops, "traceId": trace_id}
