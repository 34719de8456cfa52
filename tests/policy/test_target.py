"""The delivery target of a session, derived from its key and its entry."""

from __future__ import annotations

from typing import Any

from support.rows import check_each

from sessiond.model.entry import Entry
from sessiond.policy.target import Target, target_of

GROUP = "agent:main:telegram:group:-100"
MAIN = "agent:main:main"


@check_each(
    ("key", "fields", "target"),
    [
        (GROUP, {}, Target(channel="telegram", to="-100")),
        ("agent:main:discord:channel:42", {}, Target(channel="discord", to="42")),
        (f"{GROUP}:topic:7", {}, Target(channel="telegram", to="-100", thread_id="7")),
        ("agent:main:slack:channel:c1:thread:17", {}, Target(channel="slack", to="c1", thread_id="17")),
        (f"{GROUP}:topic:x", {}, Target(channel="telegram", to="-100:topic:x")),
        # Keys are lower case; chat ids need not be.
        (
            "agent:main:slack:channel:c1",
            {"delivery_context": {"to": "C1", "channel": "slack", "accountId": "a", "threadId": 5}},
            Target(channel="slack", to="C1", account_id="a", thread_id="5"),
        ),
        ("agent:main:slack:channel:c1", {"last_to": "C1"}, Target(channel="slack", to="C1")),
        # The last route through another channel must not be used for this chat.
        (
            GROUP,
            {"delivery_context": {"to": "+49", "channel": "signal", "accountId": "a", "threadId": "t"}},
            Target(channel="telegram", to="-100"),
        ),
        (MAIN, {}, None),
        (MAIN, {"last_channel": "signal", "last_to": "+49"}, Target(channel="signal", to="+49")),
        (MAIN, {"last_channel": "Signal", "last_to": "+49"}, Target(channel="signal", to="+49")),
        (MAIN, {"last_channel": "signal"}, None),
        (MAIN, {"last_to": "+49"}, None),
        (MAIN, {"last_channel": "unknown", "last_to": "x"}, None),
        (MAIN, {"last_channel": "webchat"}, Target(channel="webchat")),
        (MAIN, {"last_channel": "internal"}, Target(channel="internal")),
        (
            MAIN,
            {
                "last_channel": "signal",
                "last_to": "+49",
                "last_account_id": "b",
                "delivery_context": {"channel": "telegram", "to": 17, "threadId": "3"},
            },
            Target(channel="telegram", to="17", account_id="b", thread_id="3"),
        ),
        (
            MAIN,
            {"delivery_context": {"channel": 5, "to": True}, "last_channel": "a", "last_to": "b"},
            Target(channel="5", to="b"),
        ),
        (MAIN, {"channel": "telegram", "group_id": "g"}, Target(channel="telegram", to="g")),
    ],
)
def test_the_target_comes_from_the_key_and_the_entry(key: str, fields: dict[str, Any], target: Target | None):
    assert target_of(key, Entry(session_id="s", **fields)) == target
