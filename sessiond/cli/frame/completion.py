"""Completions of keys, agents, questions and parameters for the shell, from the daemon; none if it is not running."""

from __future__ import annotations

import re
from typing import Any

from sessiond.client.blocking import Client
from sessiond.client.errors import ClientError

# The user is waiting after pressing TAB, so a later answer is useless.
TIMEOUT_S = 0.5
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*")


def offers(source: str | None) -> list[str]:
    """The words for `source`: `key`, `inbox`, `agent`, `question` or `method`."""
    try:
        with Client(name="sessiond-completion") as client:
            if source in ("key", "inbox"):
                asked = {"limit": 200, **({"search": ":mcp:"} if source == "inbox" else {})}
                rows = client.call("sessions_list", asked, timeout_s=TIMEOUT_S)["sessions"]
                return [row["key"] for row in rows]
            if source == "agent":
                return [agent["id"] for agent in client.call("agents_list", timeout_s=TIMEOUT_S)["agents"]]
            if source == "question":
                return [question["id"] for question in _open_questions(client)]
            if source == "method":
                return [method["name"] for method in client.call("rpc.discover", timeout_s=TIMEOUT_S)["methods"]]
    except (ClientError, OSError):
        pass
    return []


def offers_of_options(question_id: str | None) -> list[str]:
    """The ids of the options of an open question. An agent may write anything into them, and the shell would take it as
    its own words, so only plain ones are offered.
    """
    begin = (question_id or "").lower()
    try:
        with Client(name="sessiond-completion") as client:
            found = [one for one in _open_questions(client) if begin and one["id"].startswith(begin)]
    except (ClientError, OSError):
        return []
    return [option["id"] for one in found for option in one["options"] if _PLAIN.fullmatch(option["id"])]


def _open_questions(client: Client) -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = client.call("questions.list", {"open": True}, timeout_s=TIMEOUT_S)["questions"]
    return questions


# Parameters whose values the shell can offer.
_SOURCES = {"sessionKey": "key", "key": "key", "parentSessionKey": "key", "agentId": "agent"}


def offers_of_params(method: str | None, incomplete: str) -> list[str]:
    """`NAME=` for each parameter of the method; after a complete name `NAME=VALUE`."""
    from sessiond.cli.frame.params import schemas_of, values_of

    name, equals, _ = incomplete.partition("=")
    try:
        with Client(name="sessiond-completion") as client:
            schemas = schemas_of(client.call("rpc.discover", timeout_s=TIMEOUT_S), method or "")
    except (ClientError, OSError):
        return []
    if schemas is None:
        return []
    if not equals:
        return [f"{known}=" for known in schemas]
    values = offers(_SOURCES[name]) if name in _SOURCES else values_of(schemas.get(name, {}))
    return [f"{name}={value}" for value in values]
