"""Whose a message is: set by the daemon from who sends it, with the loop guards that count it.

Knows sessions, runs and the rate. Accepts nothing, and does not know how a message is brought.
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
from sessiond.policy.replyback import ConversationFacts, inter_session_preamble
from sessiond.runs.follow_up import ConversationTopic, FollowUp
from sessiond.runs.run import Run, RunRequest
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


class ProvenanceStamp:
    """Says of each message between sessions where it comes from; refuses what goes on for too long or too fast."""

    def __init__(self, announcing: AnnounceStep, config: Callable[[], Config], clock: Clock, ids: Ids) -> None:
        self._announcing, self._config, self._clock, self._ids = announcing, config, clock, ids
        self._traffic = RateLimit()

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


def provenance_of(
    trace_id: str, hops: int, source_key: str | None, source_channel: str | None, tool: str = "sessions_send"
) -> dict[str, Any]:
    """The provenance of a message from another session, and by which `tool` it came.

    Source: store.md, "Messages"; protocol.md, "Who creates a session".

    `hops` counts the messages that led to this one, itself included; `traceId` is the same in all of them.
    """
    provenance: dict[str, Any] = {"kind": "inter_session"}
    if source_key is not None:
        provenance["sourceSessionKey"] = source_key
        if source_channel is not None:
            provenance["sourceChannel"] = source_channel
    return {**provenance, "sourceTool": tool, "hops": hops, "traceId": trace_id}
