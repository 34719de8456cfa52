"""`run.event`: what an attached agent says while it lives a run. A notification, answered where an answer is wanted."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.methods.params import Empty
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.runtimes.message_check import check_message


class RunEventParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`tool` events carry whatever else the agent wants to show, so unknown fields are kept.

    Source: runs.md, "attached".
    """

    run_id: str
    type: Literal["delta", "tool", "message"]
    text: str | None = None
    message: dict[str, Any] | None = None
    phase: Literal["start", "update", "end"] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    args: Any = None
    result: Any = None
    is_error: bool | None = None


# Plain: events are taken in the order in which they come, and a message does not hold up what is read after it.
def handle(ctx: Context, params: RunEventParams) -> Empty:
    turn = ctx.services.attached.turn(params.run_id, ctx.services.connections.get(ctx.peer))
    if turn is None:
        raise NotFound(f"this connection lives no run {quote(params.run_id[:120])} just now", code="run_not_found")
    match params.type:
        case "delta":
            if params.text is None:
                raise InvalidParams("`$.text`: it is missing.", field="$.text")
            turn.sink.delta(params.text)
        case "message":
            # A Raw with a default has no JSON schema, and `rpc.discover` gives one of every method.
            turn.append(check_message(msgspec.Raw(msgspec.json.encode(params.message)), "$.message"))
        case "tool":
            if params.phase is None or params.tool_call_id is None or params.name is None:
                raise InvalidParams("a tool event has `$.phase`, `$.toolCallId` and `$.name`", field="$.phase")
            more = {"args": params.args, "result": params.result, "isError": params.is_error}
            shown = {name: value for name, value in more.items() if value is not None}
            turn.sink.tool(params.phase, params.tool_call_id, params.name, **shown)
    return Empty()


METHOD = Method(
    "run.event", None, RunEventParams, Empty, handle, "Tell of a run that this connection lives.", streams=True
)
