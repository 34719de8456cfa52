"""The `[[notify]]` tables: who is called when an agent needs a person. Structs and rules; calls nobody.

Source: runs.md, "Notifications".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sessiond.config.agents import Command, Table, Word
from sessiond.config.interpreters import find_program_word
from sessiond.config.source import ConfigText, KeyPath
from sessiond.config.urls import parse_http_url

# A question waits for a person; a run ended as error or timeout; a run was long, or is of a session that was marked.
Occasion = Literal["waiting", "error", "done"]
# Each rule has a task of its own and may keep a thread.
MAX_RULES = 32
# The placeholders of a command. Those of WORDS hold what agents write, and must not be taken for an option.
WORDS = ("title", "text", "body")
PLACEHOLDERS = ("id", "when", *WORDS, "sessionKey", "agentId", "questionId")

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_EXAMPLE = '["notify-send", "--app-name=sessiond", "{title}", "{text}"]'
_FOR_URLS = ("format", "headersFile")


class NotifyRule(Table, frozen=True):
    """Who is called, and of what. Either `command` or `url` is set; `format` and `headers_file` are for a `url`.

    `agents` are patterns of agent ids, or names of programs for the questions of their sessions. With `body` what the
    agent wrote is told as well.
    """

    when: Annotated[tuple[Occasion, ...], msgspec.Meta(min_length=1)] = ("waiting", "error", "done")
    agents: Annotated[tuple[Word, ...], msgspec.Meta(min_length=1)] = ("*",)
    command: Command | None = None
    url: Word | None = None
    format: Literal["json", "text"] = "json"
    headers_file: Path | None = None
    body: bool = False


def check_rules(source: ConfigText, rules: list[dict[str, Any]]) -> None:
    """Raise ConfigError for the first mistake in the tables, whose types are right. Not for `headersFile`: its path."""
    if len(rules) > MAX_RULES:
        raise source.error(("notify", MAX_RULES), f"is one too many: there may be {MAX_RULES} [[notify]] tables")
    for index, rule in enumerate(rules):
        path: KeyPath = ("notify", index)
        if "command" in rule and "url" in rule:
            raise source.error((*path, "url"), "cannot stand beside command; write a [[notify]] for each")
        if "command" in rule:
            _check_command(source, path, rule)
        elif "url" in rule:
            _check_url(source, (*path, "url"), rule["url"])
        else:
            raise source.error(path, f"needs a command or a url, like command = {_EXAMPLE}")


def _check_command(source: ConfigText, path: KeyPath, rule: dict[str, Any]) -> None:
    for key in _FOR_URLS:
        if key in rule:
            raise source.error((*path, key), "is for a url only; a command has {title} and {text} among its words")
    words = rule["command"]
    if (found := _PLACEHOLDER.search(words[0])) is not None:
        raise source.error((*path, "command", 0), f"has {found[0]}, but it must name the program itself")
    for index, word in enumerate(words):
        placeholder = _PLACEHOLDER.search(word)
        if placeholder is None:
            continue
        if placeholder[0] == "{body}" and not rule.get("body"):
            raise source.error((*path, "command", index), "has {body}, which needs body = true beside it")
    place = find_program_word(words, lambda word: _PLACEHOLDER.search(word) is not None)
    if place is not None:
        found = _PLACEHOLDER.search(words[place])
        raise source.error(
            (*path, "command", place),
            f"has {found[0] if found else 'a placeholder'} in a script, where a shell or another interpreter would run"
            ' what an agent writes; make it a word of its own, like ["sh", "-c", "say \\"$1\\"", "sh", "{text}"]',
        )


def _check_url(source: ConfigText, path: KeyPath, url: str) -> None:
    try:
        parse_http_url(url)
    except ValueError as error:
        # Without the address itself, which may have a password in it.
        raise source.error(path, str(error)) from None


def applicable_rule_keys(rule: dict[str, Any]) -> dict[str, Any]:
    """The table of a rule, without the keys that it may not have in a file."""
    return {key: value for key, value in rule.items() if rule.get("command") is None or key not in _FOR_URLS}
