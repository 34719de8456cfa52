"""An editor made with the official SDK of the Agent Client Protocol, in a process of its own, told what to do by lines.

    acp_sdk_client.py COMMAND...

starts the agent. A line on standard input is `{"n": 1, "call": "new_session", "args": {...}}`, a method of the SDK's
connection; several may be under way. Lines on standard output: `{"n": 1, "result": ...}` or `{"n": 1, "error": {code,
message, data}}`, `{"update": ..., "session": ...}` for each update, in their order, and `{"bad": ...}` for a frame that
is not as the protocol has it. A question of the agent is `{"asked": 0, "params": ...}` with the id of its request; the
line `{"answer": 0, "outcome": {...}, "reason"?: ...}` answers it, `{"taken_back": 0}` says that it need not be.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from acp import RequestError, spawn_agent_process
from acp.schema import RequestPermissionResponse
from support.acp_schema import check_frame


def put(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Editor:
    """The SDK's client: it reports what it gets."""

    def __init__(self) -> None:
        self.new_ids: list[int] = []  # of questions, in their order: the SDK does not tell
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        request_id = self.new_ids.pop(0)
        order = await self.answers.setdefault(request_id, asyncio.Future())
        meta = {"sessiond": {"reason": order["reason"]}} if "reason" in order else None
        return RequestPermissionResponse.model_validate({"outcome": order["outcome"], "_meta": meta})

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        put({"session": session_id, "update": update.model_dump(by_alias=True, exclude_unset=True, mode="json")})

    def on_connect(self, _connection: Any) -> None:
        pass


class FrameCheck:
    """Holds every frame of the agent against the schema."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._methods: dict[Any, str] = {}

    def take(self, event: Any) -> None:
        frame = event.message
        if event.direction.value == "outgoing":
            if "method" in frame:
                self._methods[frame.get("id")] = frame["method"]
            return
        if frame.get("method") == "session/request_permission":
            self._editor.new_ids.append(frame["id"])
            put({"asked": frame["id"], "params": frame["params"]})
        if frame.get("method") == "$/cancel_request":
            put({"taken_back": frame["params"]["requestId"]})
        is_answer = "id" in frame and "method" not in frame
        try:
            check_frame(frame, self._methods.pop(frame["id"]) if is_answer else None)
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
    editor = Editor()
    observers = [FrameCheck(editor).take]
    more: dict[str, Any] = {"transport_kwargs": {"limit": 1 << 26, "stderr": None}, "observers": observers}
    async with spawn_agent_process(editor, *sys.argv[1:], env=dict(os.environ), **more) as (connection, _):
        under_way = set()
        while line := await orders.readline():
            order = json.loads(line)
            if "answer" in order:
                editor.answers.setdefault(order["answer"], asyncio.Future()).set_result(order)
                continue
            task = asyncio.create_task(carry_out(connection, order))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(0)  # it is sent before the next


asyncio.run(main())
