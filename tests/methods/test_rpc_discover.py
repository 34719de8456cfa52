"""`rpc.discover` over every transport."""

from __future__ import annotations

from support.method_calls import Call

from sessiond.methods.table import METHODS


def test_the_document_has_every_method_once(call: Call) -> None:
    document = call("rpc.discover")
    names = [method["name"] for method in document["methods"]]
    assert sorted(names) == sorted(method.name for method in METHODS)
    assert document["openrpc"].startswith("1.")
