"""An editor made with the official SDK of the Agent Client Protocol, in a process of its own, told what to do by lines.

    acp_sdk_client.py COMMAND...

starts the agent. A line on standard input is `{"n": 1, "call": "new_session", "args": {...}}`, a method of the SDK's
connection; several may be under way. Lines on standard output: `{"n": 1, "result": ...}` or `{"n": 1, "error": {code,
message, data}}`, `{"update": ..., "session": ...}` for each update, in their order, and `{"bad": ...}` for a frame that
is not as the protocol has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from acp import RequestError, spawn_agent_process
from support.acp_schema import check_frame


def put(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Editor:
    """The SDK's client: it reports what it gets."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        put({"session": session_id, "update": update.model_dump(by_alias=True, exclude_unset=True, mode="json")})

    def on_connect(self, _connection: Any) -> None:
        pass


class FrameCheck:
    """Holds every frame of the agent against the schema."""

    def __init__(self) -> None:
        self._methods: dict[Any, str] = {}

    def take(self, event: Any) -> None:
        frame = event.message
        if event.direction.value == "outgoing":
            self._methods[frame.get("id")] = frame.get("method", "")
            return
        try:
            check_frame(frame, self._methods.pop(frame["id"]) if "id" in frame else None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it is reported
            put({"bad": f"{type(error).__name__}: {error}", "frame": frame})


async def carry_out(connection: Any, order: dict[str, Any]) -> None:
    try:
        result = await getattr(connection, order["call"])(**order["args"])
        shown = None if result is None else result.model_dump(by_alias=True, exclude_unset=True, mode="json")
        put({"n": order["n"], "result": shown})
    except RequestError as error:
        put({"n": order["n"], "error": error.to_error_obj()})


async def main() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    observers = [FrameCheck().take]
    more: dict[str, Any] = {"transport_kwargs": {"limit": 1 << 26, "stderr": None}, "observers": observers}
    async with spawn_agent_process(Editor(), *sys.argv[1:], env=dict(os.environ), **more) as (connection, _):
        under_way = set()
        while line := await orders.readline():
            task = asyncio.create_task(carry_out(connection, json.loads(line)))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(0)  # it is sent before the next


asyncio.run(main())
