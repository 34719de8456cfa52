"""What a hook prints: compact JSON as the programs' own examples have it. Pure. Standard library only."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.cli.hooks.event import Permission

DENIED = "Denied by the owner, who was asked through sessiond."


def print_decision(permission: Permission, answer: dict[str, Any]) -> str | None:
    """The decision for the answer to a question; None where nobody has decided, so that the program asks itself."""
    chosen = answer.get("optionId")
    option = next((option for option in permission.options if option["id"] == chosen), None)
    if answer.get("outcome") != "answered" or option is None:
        return None
    decision: dict[str, Any]
    if not option["kind"].startswith("allow"):
        decision = {"behavior": "deny", "message": answer.get("note") or DENIED}
    else:
        decision = {"behavior": "allow", **permission.grants.get(option["id"], {})}
    return _print("PermissionRequest", {"decision": decision})


def print_context(event: str, context: str) -> str:
    """Words for the agent, beside those of the person."""
    return _print(event, {"additionalContext": context})


def _print(event: str, fields: dict[str, Any]) -> str:
    return json.dumps({"hookSpecificOutput": {"hookEventName": event, **fields}}, separators=(",", ":"))
