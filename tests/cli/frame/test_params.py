from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.frame.failures import CommandFailed
from sessiond.cli.frame.params import read_params, schemas_of, values_of
from sessiond.methods.table import METHODS
from sessiond.rpc.openrpc import openrpc_document

DOCUMENT = openrpc_document(METHODS, title="sessiond", version="1")


def parse_words(method: str, *words: str) -> dict[str, Any]:
    return read_params(words, method, lambda: DOCUMENT)


def refusal_for(method: str, *words: str) -> str:
    with pytest.raises(CommandFailed) as failed:
        parse_words(method, *words)
    assert failed.value.status == 2
    return f"{failed.value.message}; {failed.value.hint}"


def fail_if_asked() -> Any:
    raise AssertionError("the daemon was asked")


def test_values_have_the_types_that_the_method_declares() -> None:
    words = ("limit=5", "search=build = red", "includeArchived=true", "label=2026")
    given_here = {"limit": 5, "search": "build = red", "includeArchived": True, "label": "2026"}
    assert parse_words("sessions_list", *words) == given_here
    assert parse_words("sessions.patch", "key=main", "label=null") == {"key": "main", "label": None}
    assert parse_words("tokens.mint", "scopes=list", "scopes=read") == {"scopes": ["list", "read"]}
    assert parse_words("tokens.mint", 'scopes=["list","read"]') == {"scopes": ["list", "read"]}
    assert parse_words("chat.send", "sessionKey=main", "message=") == {"sessionKey": "main", "message": ""}
    assert parse_words("sessions.send", "message={}") == {"message": "{}"}  # an alias, and text that looks like JSON


def test_json_values_need_no_description_and_mix_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_params((), "ping", fail_if_asked) == {}
    assert read_params(('{"a": 1}',), "m", fail_if_asked) == {"a": 1}
    assert parse_words("sessions_list", '{"limit": 1, "search": "x=y"}', "limit=2") == {"limit": 2, "search": "x=y"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"b": 2}')))
    assert read_params(("-",), "m", fail_if_asked) == {"b": 2}


@check_each(
    ("method", "word", "said"),
    [
        ("sessions_list", "limt=5", "sessions_list takes no 'limt'; did you mean limit?"),
        ("sessions_list", "limit=many", "limit is a number, not 'many'; None"),
        ("sessions_list", "includeArchived=yes", "includeArchived is true or false, not 'yes'; None"),
        ("sessions_lst", "limit=5", "no method 'sessions_lst'; did you mean"),
        ("sessions_list", "[1]", "the params must be a JSON object: params go by name; None"),
        ("sessions_list", "limit", "'limit' is neither NAME=VALUE nor JSON"),
    ],
)
def test_a_mistake_is_reported_with_its_parameter(method: str, word: str, said: str) -> None:
    assert refusal_for(method, word).startswith(said)


@given(
    method=st.sampled_from([method.name for method in METHODS]),
    words=st.lists(
        st.one_of(st.text(), st.builds("{}={}".format, st.sampled_from(["limit", "key", "scopes"]), st.text()))
    ),
)
def test_any_words_are_parsed_or_refused(method: str, words: list[str]) -> None:
    with suppress(CommandFailed):
        json.dumps(read_params([word for word in words if word != "-"], method, lambda: DOCUMENT))


def test_completion_offers_the_allowed_values() -> None:
    schemas = schemas_of(DOCUMENT, "sessions_spawn")
    assert schemas is not None
    assert values_of(schemas["cleanup"]) == ["delete", "keep"]
    assert values_of({"anyOf": [{"type": "boolean"}, {"type": "null"}]}) == ["true", "false"]
    assert schemas_of(DOCUMENT, "nothing") is None
