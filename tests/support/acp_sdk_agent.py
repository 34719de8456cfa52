"""An agent made with the official Python SDK of ACP, in a process of its own: it does what a prompt says.

Many turns may go on at once. Sessions are kept in `sdk-<id>.json` in their folder.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from acp import (
    PROTOCOL_VERSION,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    run_agent,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentCapabilities,
    AgentMessageChunk,
    Cost,
    Implementation,
    PermissionOption,
    PromptCapabilities,
    ToolCallUpdate,
    UsageUpdate,
)


class SdkAgent:
    """Echoes, calls a tool, or waits until it is cancelled."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.cancels: dict[str, asyncio.Event] = {}
        self.client: Any = None

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(load_session=True, prompt_capabilities=PromptCapabilities(image=True)),
            agent_info=Implementation(name="sdk-agent", version="1"),
        )

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        session = f"sdk-{os.getpid()}-{len(self.folders)}"
        self.folders[session] = Path(cwd)
        return NewSessionResponse(session_id=session)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse | None:
        self.folders[session_id] = Path(cwd)
        if not self.file(session_id).exists():
            raise RequestError.invalid_params({"details": "no such session"})
        for text in self.history(session_id):
            await self.client.session_update(session_id, update_user_message_text(text))
            await self.client.session_update(session_id, update_agent_message_text(f"replayed {text}"))
        return None

    def file(self, session: str) -> Path:
        return self.folders[session] / f"{session}.json"

    def history(self, session: str) -> list[str]:
        known: list[str] = json.loads(self.file(session).read_text()) if self.file(session).exists() else []
        return known

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        text = prompt[0].text.rpartition("\n\n")[2]
        self.file(session_id).write_text(json.dumps([*self.history(session_id), text]))
        if text == "known":
            await self.say(session_id, " | ".join(self.history(session_id)))
        elif text == "work":
            await self.work(session_id)
        elif text.startswith("wait"):
            await self.say(session_id, "waiting")
            self.cancels[session_id] = asyncio.Event()
            await self.cancels[session_id].wait()
            return PromptResponse(stop_reason="cancelled")
        else:
            images = sum(block.type == "image" for block in prompt)
            await self.say(session_id, text + f" and {images} images" * bool(images))
        return PromptResponse(stop_reason="end_turn")

    async def work(self, session: str) -> None:
        await self.client.session_update(session, update_agent_thought_text("what is there?"))
        await self.say(session, "I look. ", "m1")
        call = start_tool_call("t1", "List the files", kind="execute", status="pending", raw_input={"command": "ls"})
        await self.client.session_update(session, call)
        kinds = ("allow_once", "reject_once")
        options = [PermissionOption(option_id=f"option {kind}", name=kind, kind=kind) for kind in kinds]
        call_now = ToolCallUpdate(tool_call_id="t1", title="List the files", kind="execute")
        given = await self.client.request_permission(session_id=session, tool_call=call_now, options=options)
        chosen = given.outcome.option_id
        done = "completed" if chosen == "option allow_once" else "failed"
        update = update_tool_call("t1", status=done, content=[tool_content(text_block("a b"))])
        await self.client.session_update(session, update)
        usage = UsageUpdate(session_update="usage_update", used=500, size=9000, cost=Cost(amount=0.25, currency="USD"))
        await self.client.session_update(session, usage)
        await self.say(session, f"done, {chosen}", "m2")

    async def say(self, session: str, text: str, message_id: str | None = None) -> None:
        chunk = AgentMessageChunk(session_update="agent_message_chunk", content=text_block(text), message_id=message_id)
        await self.client.session_update(session, chunk)

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self.cancels:
            self.cancels[session_id].set()


asyncio.run(run_agent(SdkAgent()))  # type: ignore[arg-type]
