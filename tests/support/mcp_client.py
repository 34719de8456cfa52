"""The official MCP client, talking to `sessiond mcp` over its standard input and output.

It takes a second to import, so it is imported where it is used: each of the processes that share the tests reads all of
their files.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from mcp import ClientSession, StdioServerParameters, types


class ToolAnswer:
    """What a tool answered: `text` for the model, `data` for programs, `error` whether it is one."""

    def __init__(self, result: types.CallToolResult) -> None:
        (content,) = result.content
        assert content.type == "text"
        self.text, self.data, self.error, self.meta = (
            content.text,
            result.structured_content,
            result.is_error,
            result.meta,
        )


class Agent:
    """An interactive program with our tools."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def use(self, tool: str, /, **arguments: Any) -> ToolAnswer:
        return ToolAnswer(await self.session.call_tool(tool, arguments))

    async def data(self, tool: str, /, **arguments: Any) -> Any:
        said = await self.use(tool, **arguments)
        assert not said.error, said.text
        return said.data


def server(daemon: Daemon, *args: str, **env: str) -> StdioServerParameters:
    """How an agent program starts our server."""
    from mcp import StdioServerParameters

    command = ["-m", "sessiond", "mcp", *args]
    return StdioServerParameters(command=sys.executable, args=command, env={**daemon.environ, **env})


@asynccontextmanager
async def agent(daemon: Daemon, name: str = "Tester", *args: str, **env: str) -> AsyncIterator[Agent]:
    """A client that calls itself `name`, with its own `sessiond mcp`."""
    from mcp import ClientSession, types
    from mcp.client.stdio import stdio_client

    with trio.fail_after(PATIENCE_S):
        async with stdio_client(server(daemon, *args, **env)) as (read, write):
            info = types.Implementation(name=name, version="1")
            async with ClientSession(read, write, client_info=info) as session:
                await session.initialize()
                yield Agent(session)
