"""What a permission request of an agent is answered, by the agent's policy. Pure. Source: runs.md, "acp"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from sessiond.runtimes.presets.fields import text

# How an option is chosen: by its kind, never by its id or name, which each agent words in its own way.
ALLOWING = ("allow_once", "allow_always")
_REJECTING = ("reject_once", "reject_always")


class PermissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request. `option_id` None: the request is cancelled. `reason` says why, in a sentence."""

    decision: Literal["allow", "deny", "cancelled"]
    reason: str
    option_id: str | None = None

    @property
    def result(self) -> dict[str, Any]:
        """The result of `session/request_permission`."""
        selected = {"outcome": "selected", "optionId": self.option_id}
        outcome = {"outcome": "cancelled"} if self.option_id is None else selected
        return {"outcome": outcome, "_meta": {"sessiond": {"reason": self.reason}}}


def decide(kind: str, options: Sequence[Any], *, policy: str, rules: Mapping[Any, str]) -> PermissionAnswer | None:
    """The answer to a request for a tool call of this kind; None where a person is to be asked.

    The rule for the kind comes before `policy`.
    """
    wanted = rules.get(kind, policy)
    source = f'permissionRules.{kind} = "{wanted}"' if kind in rules else f'permissions = "{wanted}"'
    if wanted == "ask":
        return None
    if wanted == "deny":
        return reject(options, source)
    option = _find_option(options, ALLOWING)
    if option is None:
        return PermissionAnswer(decision="cancelled", reason=f"{source}, but the agent offered no way to allow it")
    return PermissionAnswer(decision="allow", reason=source, option_id=option)


def reject(options: Sequence[Any], reason: str) -> PermissionAnswer:
    """The answer that denies a request; it is cancelled where the agent offered no way to deny it."""
    option = _find_option(options, _REJECTING)
    if option is None:
        return PermissionAnswer(decision="cancelled", reason=reason)
    return PermissionAnswer(decision="deny", reason=reason, option_id=option)


def cancel(reason: str) -> PermissionAnswer:
    """The answer to a request of a turn that is over or being cancelled."""
    return PermissionAnswer(decision="cancelled", reason=reason)


def _find_option(options: Sequence[Any], kinds: Sequence[str]) -> str | None:
    for kind in kinds:
        for option in options:
            # An id may be any string, also the empty one.
            option_id = option.get("optionId") if isinstance(option, dict) else None
            if text(option, "kind") == kind and isinstance(option_id, str):
                return option_id
    return None
