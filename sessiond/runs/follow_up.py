"""What is to follow a run, as its accepted record says. Shapes only: whoever does it reads them in the rooms above.

Source: runs.md, "A conversation"; runs.md, "Announce".
"""

from __future__ import annotations

import msgspec

from sessiond.policy.replyback import ConversationFacts


class ConversationTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a sessions_send says of the conversation that is to follow it; kept in the run's `follow`.

    The conversation's `request` is empty there: the run has it as its text. `requester_session_id` pins the transcript
    that the requester's turns go to: after a reset there is another one.
    """

    conversation: ConversationFacts
    trace_id: str
    hops: int
    requester_session_id: str | None = None


class ConversationStep(msgspec.Struct, frozen=True, rename="camel"):
    """In the `follow` of a step's run: whose step it is, and which."""

    talk_id: str
    number: int


class SpawnFollowUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A sub-agent's first run: its end is announced to the requester."""

    requester_key: str | None = None


class AnnouncementFollowUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A run that an announcement started: which child's, and of which run."""

    child_session_key: str | None = None
    run_id: str | None = None


class FollowUp(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """At most one of these. `deliver`: the reply goes to the session's channel."""

    talk: ConversationTopic | None = None
    step: ConversationStep | None = None
    spawn: SpawnFollowUp | None = None
    announcement: AnnouncementFollowUp | None = None
    deliver: bool = False


# The default of a request: what is this very object is not written down.
NOTHING_FOLLOWS = FollowUp()
