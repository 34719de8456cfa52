"""Which sessions a peer gets: those that a rule of the configuration exports to it, and those that the owner marked.

A pure decision over the row of a session. Nothing is exported by default. Source: machines.md, "What is exported".
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from sessiond.config.link import ExportRule, PeerConfig
from sessiond.model.keys import agent_of
from sessiond.policy.visibility import matches_any, matches_exactly


def is_exported(
    row: Mapping[str, Any], peer: PeerConfig, shared_with: AbstractSet[str], agents: AbstractSet[str]
) -> bool:
    """Whether the peer gets the session with this row of sessions_list. `shared_with`: the peers, or `*`, for which the
    owner has marked it. `agents`: the ids of the configured agents.

    Only sessions of this machine: not those of other programs, and no replicas, which are their machine's to export.
    By no rule those of an agent that the configuration does not have. It stands for a machine, or may have stood for
    one that was taken out: in them is what that machine has answered.
    """
    key = row.get("key")
    if (
        row.get("source") != "sessiond"
        or row.get("machine")
        or not isinstance(key, str)
        or not key.startswith("agent:")
    ):
        return False
    if shared_with & {peer.name, "*"}:
        return True
    agent_id = agent_of(key)
    return agent_id in agents and any(_matches(row, agent_id, rule) for rule in peer.export)


def _matches(row: Mapping[str, Any], agent_id: str, rule: ExportRule) -> bool:
    """Whether all fields that the rule has match. A rule without any matches nothing."""
    if not (rule.agents or rule.labels or rule.cwd):
        return False
    label, cwd = row.get("label"), row.get("cwd")
    if rule.agents and not matches_any(rule.agents, agent_id):
        return False
    if rule.labels and not (isinstance(label, str) and matches_any(rule.labels, label)):
        return False
    return not rule.cwd or (isinstance(cwd, str) and any(_contains(pattern, cwd) for pattern in rule.cwd))


def _contains(pattern: str, cwd: str) -> bool:
    """Whether a folder is the pattern's. Case counts, and `..` leads out of a folder before it is compared."""
    return matches_exactly(pattern, posixpath.normpath(cwd))
