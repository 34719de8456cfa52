from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.cli.terminal.output import as_json, json_line


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_json_output_reads_back_the_same_and_has_no_terminal_controls(
    capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    json_line(value)
    written = capsys.readouterr().out
    assert json.loads(written) == value
    assert written.endswith("\n") and "\n" not in written[:-1]
    assert not any(ord(char) in (*range(32), *range(127, 160), 0x202E, 0x2066, 0x2028) for char in written[:-1])


def test_json_keeps_readable_letters_and_is_one_line_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    as_json({"text": "Grüße 漢", "bidi": "\u202e"})
    assert capsys.readouterr().out == '{"text":"Grüße 漢","bidi":"\\u202e"}\n'
