"""The `[[notify]]` tables: what a rule may be, and what the errors for a bad one say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.interpreters import find_program_word
from sessiond.config.notify import MAX_RULES, NotifyRule
from sessiond.config.settings import parse, to_document
from sessiond.config.urls import HttpUrl, parse_http_url
from sessiond.errors import ConfigError

COMMAND = 'command = ["notify-send", "{title}"]\n'
URL = 'url = "https://ntfy.example/topic"\n'


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_a_rule_is_about_everything_of_every_agent_by_default() -> None:
    config = parse(f"[[notify]]\n{COMMAND}[[notify]]\n{URL}headersFile = '~/headers'\n")
    assert config.notify == (
        NotifyRule(command=("notify-send", "{title}")),
        NotifyRule(url="https://ntfy.example/topic", headers_file=Path.home() / "headers"),
    )
    assert config.notify[0].when == ("waiting", "error", "done")
    assert config.notify[0].agents == ("*",)


def test_what_is_shown_of_a_rule_is_a_rule_again() -> None:
    shown = to_document(parse(f"[[notify]]\n{COMMAND}[[notify]]\n{URL}"))["notify"]
    both = {"when": ["waiting", "error", "done"], "agents": ["*"], "body": False}
    assert shown == [
        both | {"command": ["notify-send", "{title}"]},
        both | {"url": "https://ntfy.example/topic", "format": "json"},
    ]


@check_each(
    ("rule", "error"),
    [
        ("", '1: notify[0] needs a command or a url, like command = ["notify-send", "--app-name=sessiond", '),
        (COMMAND + URL, "3: notify[0].url cannot stand beside command; write a [[notify]] for each"),
        ("command = []", "2: notify[0].command must not be empty"),
        (URL + "when = []", "3: notify[0].when must not be empty"),
        (URL + "agents = []", "3: notify[0].agents must not be empty"),
        (URL + 'when = ["asking"]', '3: notify[0].when[0] must be one of "done", "error", "waiting", not "asking"'),
        (COMMAND + 'format = "text"', "3: notify[0].format is for a url only"),
        (COMMAND + 'headersFile = "/h"', "3: notify[0].headersFile is for a url only"),
        (URL + 'headersFile = "h"', '3: notify[0].headersFile must be an absolute path or begin with "~/", not "h"'),
        (URL + 'headerFile = "/h"', "3: notify[0].headerFile is not a known key; did you mean notify[0].headersFile?"),
        ('command = ["{text}"]', "2: notify[0].command[0] has {text}, but it must name the program itself"),
        ('command = ["say", "{body}"]', "2: notify[0].command[1] has {body}, which needs body = true beside it"),
        ('command = [\n"/bin/bash", "-lc",\n"say {text}"]', "2: notify[0].command[2] has {text} in a script"),
        ('command = ["sh", "-c", "{title}"]', "2: notify[0].command[2] has {title} in a script"),
        ('command = ["bash", "-c", "--", "{title}"]', "2: notify[0].command[3] has {title} in a script, where"),
        ('command = ["env", "bash", "-c", "{title}"]', "2: notify[0].command[3] has {title} in a script"),
        ('url = "ftp://x/"', "2: notify[0].url must be an address of http or https"),
        ('url = "https://"', "2: notify[0].url must be an address of http or https"),
        ('url = "http://a..b/"', "2: notify[0].url must be an address of http or https"),
        (f'url = "http://{"x" * 64}/"', "2: notify[0].url must be an address of http or https"),
        ('url = "http://x:0/"', "2: notify[0].url must be an address of http or https"),
        ('url = "http://x:99999/"', "2: notify[0].url must be a URL like"),
        ('url = "http://[::1/"', "2: notify[0].url must be a URL like"),
        ('url = "https://x/a b"', "2: notify[0].url must have plain ASCII characters only"),
        ('url = "https://x/\\r\\nHost: y"', "2: notify[0].url must have plain ASCII characters only"),
        ('url = "https://bücher.example/"', "2: notify[0].url must have plain ASCII characters only"),
        ('url = "https://x/#top"', "2: notify[0].url must have no fragment"),
        ('url = ""', "2: notify[0].url must be a text that is not empty"),
    ],
)
def test_a_bad_rule_is_refused_with_its_line_and_key(rule: str, error: str) -> None:
    assert refusal(f"[[notify]]\n{rule}").startswith(f"config.toml:{error}")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    said = refusal('[[notify]]\nurl = "https://me:hunter2@x/"')
    assert "must have no user or password in it" in said
    assert "hunter2" not in said


@check_each(
    ("words", "place"),
    [
        ("bash -c X", 2),
        ("bash -c -- X", 3),
        ("bash -c -x X", 3),
        ("bash -x -c -o pipefail X", 5),
        ("bash -o pipefail -c X", 4),
        ("/usr/bin/env -i zsh -lc X", 4),
        ("busybox sh -c -- X", 4),
        ("sh -c true sh bash -c X", 6),
        ("fish --command X", 2),
        ("bash -c true bash X", None),
        ("bash -c -- true bash X", None),
        ("bash say.sh -c X", None),
        ("bash -- say.sh -c X", None),
        ("bash X", None),
        ("python -c X", 2),
        ("python3.11 -Ic X", 2),
        ("/usr/bin/python3 -cprint(X)", 1),
        ("python -c pass X", None),
        ("python script.py X", None),
        ("perl -ne X", 2),
        ("perl -e1 -eX", 2),
        ("ruby -e X", 2),
        ("node --eval=X", 1),
        ("node -e X", 2),
        ("php -r X", 2),
        ("osascript -e X", 2),
        ("osascript say.scpt X", None),
        ("su ada -c X", 3),
        ("env -S X", 2),
        ("env --split-string=X", 1),
        ("ssh host notify-send X", 3),
        ("notify-send -c X", None),
        ("notify-send -e X", None),
        ("notify-send ssh X", None),
        ("logger -t watch X", None),
        ("nice ssh host X", 3),
        ("python3 notify.py -c X", None),
        ("python3 -m notify -c X", None),
        ("node n.js -p X", None),
        ("php n.php -r X", None),
    ],
)
def test_no_interpreter_takes_what_an_agent_writes_for_a_program(words: str, place: int | None) -> None:
    assert find_program_word(words.split(), lambda word: "X" in word) == place


@given(
    st.lists(st.sampled_from(["sh", "bash", "-c", "--", "-o", "x", "python", "-cX", "X", "", "env", "-S", "-", "+o"]))
)
def test_any_words_have_a_program_word_or_none(words: list[str]) -> None:
    place = find_program_word(words, lambda word: "X" in word)
    assert place is None or "X" in words[place]


def test_words_of_a_script_may_be_arguments_of_their_own() -> None:
    rule = '[[notify]]\ncommand = ["sh", "-c", "say \\"$1\\"", "sh", "{text}"]'
    assert parse(rule).notify[0].command == ("sh", "-c", 'say "$1"', "sh", "{text}")


def test_there_may_be_so_many_rules_and_not_one_more() -> None:
    rule = f"[[notify]]\n{COMMAND}"
    assert len(parse(rule * MAX_RULES).notify) == MAX_RULES
    assert f"notify[{MAX_RULES}] is one too many: there may be {MAX_RULES}" in refusal(rule * (MAX_RULES + 1))


@check_each(
    ("text", "url", "authority"),
    [
        ("https://ntfy.example", HttpUrl("https", "ntfy.example", 443, "/"), "ntfy.example"),
        ("http://ntfy.example/a?b=c", HttpUrl("http", "ntfy.example", 80, "/a?b=c"), "ntfy.example"),
        ("http://Ntfy.Example:8080/A", HttpUrl("http", "ntfy.example", 8080, "/A"), "ntfy.example:8080"),
        ("https://[::1]:8443/", HttpUrl("https", "::1", 8443, "/"), "[::1]:8443"),
        ("http://127.0.0.1:443/", HttpUrl("http", "127.0.0.1", 443, "/"), "127.0.0.1:443"),
        ("https://x?q", HttpUrl("https", "x", 443, "/?q"), "x"),
    ],
)
def test_a_url_is_taken_apart(text: str, url: HttpUrl, authority: str) -> None:
    assert parse_http_url(text) == url
    assert url.authority == authority


@given(st.text() | st.text("htps:/[]@#?%.0129aé \r\n").map("http://".__add__))
def test_any_text_is_a_url_or_refused_with_a_sentence(text: str) -> None:
    try:
        url = parse_http_url(text)
    except ValueError as error:
        refused = str(error)
    else:
        refused = "must "
        sent = url.authority + url.target
        assert sent.isascii() and sent.isprintable() and " " not in sent
        url.host.encode("idna")
    assert refused.startswith("must ")
