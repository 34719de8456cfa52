"""A sub-agent's session before it is created, and the preamble of its task."""

from __future__ import annotations

import msgspec

from sessiond.attachments.materialize import Receipt
from sessiond.attachments.notice import describe
from sessiond.policy.spawn import SpawnFacts, SpawnPlan
from sessiond.subagents.pending_children import PendingChild
from sessiond.subagents.resumed import ResumedSession


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A checked child, not yet created. `pending` is its entry in `PendingChildren`."""

    key: str
    id: str
    plan: SpawnPlan
    facts: SpawnFacts
    mount_path: str | None
    payload: str | None
    label: str | None
    pending: PendingChild
    resumed: ResumedSession | None


def preamble(requester_key: str, facts: SpawnFacts, receipt: Receipt | None, mount_path: str | None) -> str:
    """The context of a child's first run."""
    lines = [
        f"You are a sub-agent of {requester_key} (depth {facts.requester_depth + 1} of {facts.max_spawn_depth}).",
        "Do the task below; your last answer is what it gets.",
    ]
    if receipt is not None:
        lines.append(describe(receipt, mount_path))
    return "\n".join(lines)
