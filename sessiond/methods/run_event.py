"""`run.event`: live text, tool events and messages of an attached agent during a run. Usually a notification."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.methods.params import Empty, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.runtimes.message_check import check_message


class RunEventParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A `tool` event may have other fields for subscribers, so unknown fields are kept.

    Source: runs.md, "attached".
    """

    run_id: Annotated[str, says("The run, which this connection executes.")]
    type: Annotated[
        Literal["delta", "tool", "message"],
        says("`delta`: more text of the reply. `tool`: progress of a tool. `message`: a message for the transcript."),
    ]
    text: Annotated[str | None, says("The text that a `delta` adds.")] = None
    message: Annotated[dict[str, Any] | None, says("The message object of a `message`.")] = None
    phase: Annotated[Literal["start", "update", "end"] | None, says("The phase of the tool call.")] = None
    tool_call_id: Annotated[str | None, says("The id of the tool call.")] = None
    name: Annotated[str | None, says("The name of the tool.")] = None
    args: Annotated[Any, says("The arguments of the tool call.")] = None
    result: Annotated[Any, says("The result of the tool call.")] = None
    is_error: Annotated[bool | None, says("Whether the tool failed.")] = None


# Not async, so that events are handled in their order. Writing a message is queued and delays no later request.
def handle(ctx: Context, params: RunEventParams) -> Empty:
    turn = ctx.services.attached.turn(params.run_id, ctx.services.connections.get(ctx.require_peer()))
    if turn is None:
        raise NotFound(f"this connection lives no run {quote(params.run_id[:120])} just now", code="run_not_found")
    match params.type:
        case "delta":
            if params.text is None:
                raise InvalidParams("`$.text`: it is missing.", field="$.text")
            turn.sink.delta(params.text)
        case "message":
            # Encoded again: the param cannot be a Raw, because msgspec has no JSON schema for a Raw with a default.
            turn.append(check_message(msgspec.Raw(msgspec.json.encode(params.message)), "$.message"))
        case "tool":
            if params.phase is None or params.tool_call_id is None or params.name is None:
                raise InvalidParams("a tool event has `$.phase`, `$.toolCallId` and `$.name`", field="$.phase")
            more = {"args": params.args, "result": params.result, "isError": params.is_error}
            shown = {name: value for name, value in more.items() if value is not None}
            turn.sink.tool(params.phase, params.tool_call_id, params.name, **shown)
    return Empty()


METHOD = Method(
    "run.event",
    None,
    RunEventParams,
    Empty,
    handle,
    "Report progress of a run that this connection executes.",
    streams=True,
)
