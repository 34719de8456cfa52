"""The answers to permission requests, by policy."""

from __future__ import annotations

from typing import Any

from support.rows import check_each

from sessiond.runtimes.acp.permissions import PermissionAnswer, decide

ALL = ["allow_once", "allow_always", "reject_once", "reject_always"]

DECISIONS: list[tuple[str, str, dict[str, str], list[str], PermissionAnswer | None]] = [
    ("read", "allow", {}, ALL, PermissionAnswer(decision="allow", option_id="0", reason='permissions = "allow"')),
    ("read", "allow", {}, ALL[1:], PermissionAnswer(decision="allow", option_id="0", reason='permissions = "allow"')),
    ("read", "deny", {}, ALL, PermissionAnswer(decision="deny", option_id="2", reason='permissions = "deny"')),
    ("read", "deny", {}, ALL[3:], PermissionAnswer(decision="deny", option_id="0", reason='permissions = "deny"')),
    ("read", "deny", {}, ALL[:2], PermissionAnswer(decision="cancelled", reason='permissions = "deny"')),
    (
        "read",
        "deny",
        {"read": "allow"},
        ALL,
        PermissionAnswer(decision="allow", option_id="0", reason='permissionRules.read = "allow"'),
    ),
    (
        "edit",
        "allow",
        {"edit": "deny"},
        ALL,
        PermissionAnswer(decision="deny", option_id="2", reason='permissionRules.edit = "deny"'),
    ),
    ("edit", "ask", {}, ALL, None),
    ("edit", "allow", {"edit": "ask"}, [], None),
    (
        "edit",
        "allow",
        {},
        ALL[2:],
        PermissionAnswer(
            decision="cancelled", reason='permissions = "allow", but the agent offered no way to allow it'
        ),
    ),
    (
        "new",
        "deny",
        {"read": "allow"},
        ["yes", "allow"],
        PermissionAnswer(decision="cancelled", reason='permissions = "deny"'),
    ),
]


@check_each(("kind", "policy", "rules", "kinds", "expected"), DECISIONS)
def test_the_policy_chooses_an_option_by_its_kind(
    kind: str, policy: str, rules: Any, kinds: Any, expected: Any
) -> None:
    # Names say the opposite of kinds: they are the agent's.
    options = [
        {"optionId": str(number), "name": "Reject" if "allow" in one else "Allow", "kind": one}
        for number, one in enumerate(kinds)
    ]
    answer = decide(
        kind,
        [None, {"kind": "allow_once"}, {"optionId": 7, "kind": "reject_once"}, *options],
        policy=policy,
        rules=rules,
    )
    assert answer == expected
    if answer is None or expected is None:
        return
    outcome = (
        {"outcome": "cancelled"}
        if expected.option_id is None
        else {"outcome": "selected", "optionId": expected.option_id}
    )
    assert answer.result == {"outcome": outcome, "_meta": {"sessiond": {"reason": expected.reason}}}
