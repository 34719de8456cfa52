"""Frames of the Agent Client Protocol checked against the official models of the protocol, version 1.

They take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

from typing import Any

_RESULTS = {
    "initialize": "InitializeResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/prompt": "PromptResponse",
    "session/close": "CloseSessionResponse",
}
# Newer than the models: in the schema of the protocol since its release 1.20.
_NEWER = {"name"}


def check_update(params: dict[str, Any]) -> None:
    """Check the params of a `session/update`."""
    update = {name: value for name, value in params["update"].items() if name not in _NEWER}
    check("SessionNotification", {**params, "update": update})


def check_result(method: str, result: dict[str, Any]) -> None:
    """Check the result of a request."""
    check(_RESULTS[method], result)


def check_frame(frame: dict[str, Any], method: str | None = None) -> None:
    """Check a frame of an agent: an update, a question, or the answer to a request of `method`."""
    assert frame["jsonrpc"] == "2.0"
    if frame.get("method") == "session/request_permission":
        assert frame.keys() == {"jsonrpc", "id", "method", "params"}
        check("RequestPermissionRequest", frame["params"])
    elif frame.get("method") == "$/cancel_request":
        assert frame.keys() == {"jsonrpc", "method", "params"}
        check("CancelRequestNotification", frame["params"])
    elif "method" in frame:
        assert frame.keys() == {"jsonrpc", "method", "params"}
        assert frame["method"] == "session/update"
        check_update(frame["params"])
    elif "error" in frame:
        assert frame.keys() == {"jsonrpc", "id", "error"}
        check("Error", frame["error"])
    else:
        assert frame.keys() == {"jsonrpc", "id", "result"}
        if method is not None:
            check_result(method, frame["result"])


def check(name: str, value: dict[str, Any]) -> None:
    """Check that the value fits the model of that name; the models drop what is unknown or wrong, so nothing may go."""
    import acp.schema as official
    from pydantic import TypeAdapter

    # Some are unions of models.
    adapter = TypeAdapter(getattr(official, name))
    shown = adapter.dump_python(adapter.validate_python(value), by_alias=True, exclude_unset=True, mode="json")
    assert shown == value
