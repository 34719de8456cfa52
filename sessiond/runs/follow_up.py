"""What follows a run, as stored in its accepted record. Only the types: `conversations` and `subagents` carry it out.

Source: runs.md, "A conversation"; runs.md, "Announce".
"""

from __future__ import annotations

import msgspec

from sessiond.policy.replyback import ConversationFacts


class ConversationTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The conversation that follows a sessions_send; stored in the run's `follow`.

    The conversation's `request` is empty there, because it is the text of the run. `requester_session_id` is the
    session of the requester at that time; a reset of its key creates another one.
    """

    conversation: ConversationFacts
    trace_id: str
    hops: int
    requester_session_id: str | None = None


class ConversationStep(msgspec.Struct, frozen=True, rename="camel"):
    """In the `follow` of a step's run: the conversation and the number of the step."""

    talk_id: str
    number: int


class SpawnFollowUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Marks a sub-agent's first run, whose end is announced to the requester."""

    requester_key: str | None = None


class AnnouncementFollowUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Marks a run that was started by an announcement of a child's run."""

    child_session_key: str | None = None
    run_id: str | None = None


class FollowUp(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """At most one of the fields is set. `deliver`: the reply is delivered to the session's channel."""

    talk: ConversationTopic | None = None
    step: ConversationStep | None = None
    spawn: SpawnFollowUp | None = None
    announcement: AnnouncementFollowUp | None = None
    deliver: bool = False


# The default of a request. msgspec omits a default only if it is this same object.
NOTHING_FOLLOWS = FollowUp()
