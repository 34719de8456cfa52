"""The rules of `[[notify]]` by names that last over restarts, and which of them a fact concerns. Pure."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePath

import msgspec

from sessiond.config.notify import NotifyRule
from sessiond.config.urls import parse_http_url
from sessiond.delivery.notification import Fact
from sessiond.policy.visibility import matches_any


@lru_cache(maxsize=4)  # the configuration is asked at every fact and changes with a reload
def rules_by_name(rules: tuple[NotifyRule, ...]) -> dict[str, NotifyRule]:
    """The rules by their names, in the order of the file.

    A name is made of the command or the URL alone: what waits for a target is delivered to it, however the rest of the
    table was changed meanwhile. Of several rules with the same target each has a name of its own.
    """
    found: dict[str, NotifyRule] = {}
    seen: Counter[str] = Counter()
    for rule in rules:
        target = msgspec.json.encode([rule.command, rule.url])
        name = blake2b(target, digest_size=6, person=b"notify").hexdigest()
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name}-{seen[name]}"] = rule
    return found


def is_concerned(rule: NotifyRule, fact: Fact) -> bool:
    """Whether the rule is about this fact."""
    return fact.when in rule.when and matches_any(rule.agents, fact.agent_id)


def describe_target(rule: NotifyRule) -> str:
    """The target in a word or two, for logs and doctor: without the path of a URL, which may be a secret."""
    if rule.command is not None:
        return PurePath(rule.command[0]).name
    return parse_http_url(rule.url or "").authority
