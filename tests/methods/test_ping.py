"""`ping` over every transport."""

from __future__ import annotations

import pytest
from support.method_calls import Call, CallFailed


def test_ping_answers_with_an_empty_object(call: Call) -> None:
    assert call("ping") == {}


def test_ping_takes_no_params(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("ping", loud=True)
    assert (failed.value.error["code"], failed.value.error["data"]["field"]) == (-32602, "$.loud")
