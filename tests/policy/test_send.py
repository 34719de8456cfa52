"""The send policy as tables, and which texts are commands and which are messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.settings import SendMatch, SendPolicyConfig, SendRule
from sessiond.errors import Forbidden
from sessiond.model.entry import Entry
from sessiond.policy.send import USAGE, OwnerCommand, decide, parse_command, require_allowed

MAIN = "agent:main:main"
GROUP = "agent:main:discord:group:7"


def policy(*rules: tuple[str, dict[str, str]], default: str = "allow") -> SendPolicyConfig:
    made = tuple(SendRule(match=SendMatch(**match), action=action) for action, match in rules)
    return SendPolicyConfig(default=default, rules=made)


def entry(**fields: str) -> Entry:
    return Entry(session_id="s", **fields)


def test_the_default_applies_where_no_rule_matches() -> None:
    assert decide(policy(), MAIN) == "allow"
    assert decide(policy(default="deny"), MAIN) == "deny"
    assert decide(policy(("deny", {"channel": "slack"})), MAIN) == "allow"


def test_any_deny_rule_beats_every_allow_rule_in_any_order() -> None:
    allow, deny = ("allow", {"channel": "discord"}), ("deny", {"chat_type": "group"})
    assert decide(policy(allow, deny), GROUP) == "deny"
    assert decide(policy(deny, allow), GROUP) == "deny"
    assert decide(policy(allow, default="deny"), GROUP) == "allow"


def test_the_sessions_own_override_takes_precedence() -> None:
    deny_all = policy(("deny", {}))
    assert decide(deny_all, GROUP) == "deny"
    assert decide(deny_all, GROUP, entry(send_policy="allow")) == "allow"
    assert decide(policy(), GROUP, entry(send_policy="deny")) == "deny"
    assert decide(policy(), GROUP, entry(send_policy="nonsense")) == "allow"


@check_each(
    ("prefix", "hit"),
    [
        ("agent:main:", True),
        ("agent:main:discord", True),
        ("discord:group", True),
        (" Discord: ", True),
        ("group", False),
        ("agent:other:", False),
        ("main:", False),
    ],
)
def test_a_key_prefix_matches_the_whole_key_or_what_follows_its_agent(prefix: str, hit: bool) -> None:
    assert (decide(policy(("deny", {"key_prefix": prefix})), GROUP) == "deny") is hit


def test_channel_and_chat_type_come_from_the_entry_or_else_from_the_key() -> None:
    on_slack = policy(("deny", {"channel": "Slack"}))
    assert decide(on_slack, GROUP, entry(channel="slack")) == "deny"
    assert decide(on_slack, GROUP, entry(last_channel=" SLACK")) == "deny"
    assert decide(on_slack, GROUP, entry(channel="discord", last_channel="slack")) == "allow"
    assert decide(policy(("deny", {"channel": "discord"})), GROUP, entry()) == "deny"
    direct = policy(("deny", {"chat_type": "dm"}))
    assert decide(direct, "agent:main:telegram:direct:5") == "deny"
    assert decide(direct, MAIN, entry(chat_type="direct")) == "deny"
    assert decide(direct, "agent:main:telegram:dm:5", entry(chat_type="channel")) == "allow"
    assert decide(direct, MAIN) == "allow"


def test_a_rule_matches_only_if_all_its_conditions_hold() -> None:
    both = policy(("deny", {"channel": "discord", "chat_type": "channel"}))
    assert decide(both, GROUP) == "allow"
    assert decide(both, "agent:main:discord:channel:7") == "deny"


def test_a_denied_send_is_forbidden_with_its_code() -> None:
    with pytest.raises(Forbidden, match="sending to agent:main:main is turned off") as caught:
        require_allowed(policy(default="deny"), MAIN)
    assert caught.value.code == "send_denied"
    require_allowed(policy(), MAIN)


@check_each(
    ("text", "command"),
    [
        ("/send on", OwnerCommand("send", True, "allow", "Send policy set to on.")),
        ("  /SEND\tOff\n", OwnerCommand("send", True, "deny", "Send policy set to off.")),
        ("/send inherit", OwnerCommand("send", True, None, "Send policy set to inherit.")),
        ("/send", OwnerCommand("send", reply=USAGE)),
        ("/send maybe", OwnerCommand("send", reply=USAGE)),
        ("/stop", OwnerCommand("stop")),
        (" /Stop ", OwnerCommand("stop")),
        ("/reset", OwnerCommand("reset")),
        ("/send on please", None),
        ("/stop now", None),
        ("please /stop", None),
        ("/stopp", None),
        ("stop", None),
        ("", None),
        ("/ stop", None),
        ("/send" + " " * 2000, None),
    ],
)
def test_a_text_is_a_command_only_if_it_contains_nothing_else(text: str, command: OwnerCommand | None) -> None:
    assert parse_command(text) == command


@given(st.text())
def test_text_without_a_slash_is_never_a_command(text: str) -> None:
    assert parse_command(text.replace("/", "")) is None
