"""`sessiond mcp`: the tools on standard input and output, for a program that speaks MCP.

A client of the daemon's socket like any other. It starts without the daemon too; then each tool says that it is not
there. Source: the MCP specification, by its official SDK.
"""

from __future__ import annotations

import signal
from typing import Any

import trio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from sessiond import __version__
from sessiond.client import ClientError, DaemonNotRunning, RpcError
from sessiond.errors import quote
from sessiond.mcp import tools
from sessiond.mcp.calls import Call, ask, call_of
from sessiond.mcp.seat import Seat
from sessiond.mcp.words import words

Context = ServerRequestContext[Any, Any]

# Often enough to keep a client's own time limit from running out, seldom enough to be no noise.
PROGRESS_S = 1.0
START_HINT = "start it with: systemctl --user start sessiond (or: sessiond serve)"


class Tools:
    """Answers what an MCP client asks about tools."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._listed = tools.listed()

    async def list_tools(self, ctx: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """All of them, whatever the daemon can do: which it is may change while the client lives."""
        self._arrive(ctx)
        return ListToolsResult(tools=self._listed)

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        """The answer of one tool; what goes wrong is a tool error in the daemon's own words."""
        self._arrive(ctx)
        if params.name not in tools.TOOLS:
            return _failed(f"there is no tool {quote(params.name)}; there are {', '.join(tools.TOOLS)}")
        call = call_of(params.name, tools.nothing_left_out(params.arguments or {}))
        answer: Any = None
        error: ClientError | None = None
        async with trio.open_nursery() as nursery:
            if call.wait_s:
                nursery.start_soon(_report, ctx, call)
            try:
                answer = await ask(self._seat, call)
            except ClientError as failure:
                error = failure
            nursery.cancel_scope.cancel()
        if error is not None:
            return _refused(error)
        return CallToolResult(
            content=[TextContent(type="text", text=words(params.name, answer))], structured_content=answer
        )

    def _arrive(self, ctx: Context) -> None:
        client = ctx.session.client_params
        self._seat.arrive(client.client_info.name if client is not None else "")


async def _report(ctx: Context, call: Call) -> None:
    """Tell a client that asked for it how long it has been waiting."""
    began = trio.current_time()
    while True:
        waited_s = trio.current_time() - began
        await ctx.session.report_progress(waited_s, call.wait_s, f"waiting, {waited_s:.0f} of {call.wait_s:.0f} s")
        await trio.sleep(PROGRESS_S)


def _refused(error: ClientError) -> CallToolResult:
    if isinstance(error, RpcError):
        # A model reads the sentence; a program finds the rest here.
        what = {"code": error.code, "type": error.slug, "data": error.data}
        return _failed(error.message, {"sessiond/error": what})
    if isinstance(error, DaemonNotRunning):
        return _failed(f"{error}; {START_HINT}")
    return _failed(str(error))


def _failed(text: str, meta: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True, _meta=meta)


async def serve(socket: str | None, session: str | None) -> None:
    """Serve one client until it closes standard input."""
    async with trio.open_nursery() as nursery:
        answering = Tools(Seat(nursery, socket=socket, session=session))
        server: Server[Any] = Server(
            "sessiond",
            version=__version__,
            title="sessiond",
            instructions=tools.INSTRUCTIONS,
            on_list_tools=answering.list_tools,
            on_call_tool=answering.call_tool,
        )
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
        nursery.cancel_scope.cancel()


def run(socket: str | None, session: str | None) -> int:
    """The exit status. `socket` and `session` are the command line's; None: as the environment and the client say."""
    # The SDK reads standard input in a thread that nothing can interrupt; there is nothing here to be put in order.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    trio.run(serve, socket, session)
    return 0
