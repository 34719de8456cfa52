"""A model server on loopback with canned answers, for agent programs: three vendors' streaming APIs, standard library.

    python model_server.py [--log FILE]        prints its port; appends each request as a JSON line to FILE

The answer depends on the last message only:
- the result of a tool: `The command printed: <result>`
- a text with `RUN <command>` in it: a call of the agent's shell tool (after some thinking, where the API has that);
  `RUN` on several lines: several calls in one answer
- a text with `TELL <session key> <message>` in it: a call of the tool sessions_send, where the agent has it
- a text with `CALL <tool> <JSON object>` in it: a call of that tool with these arguments (with only `input` in the
  object, in the vendors' API that has such calls: a call with that as free text)
- a text with `SLOWLY <seconds>` in it: the beginning of an answer, and the rest after that time
- a text with `HANG` in it: the beginning of an answer, and then nothing
- any other text: `Answer <number of user texts> to: <text>`
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
SHELL_TOOLS = ("Bash", "bash", "exec_command", "shell", "shell_command", "run_shell_command")


class Turn:
    """A request of any of the APIs: the user's texts, the last tool result, the tools."""

    def __init__(self, texts: list[str], result: str | None, tools: list[str]) -> None:
        self.texts = texts
        self.result = result
        self.shell = next((name for name in SHELL_TOOLS if name in tools), None)
        self.send = next((name for name in tools if name.endswith("sessions_send")), None)
        self.last = texts[-1] if texts else ""

    def calls(self) -> list[tuple[str, Json]]:
        """The tools to call, and their arguments."""
        if self.result is not None:
            return []
        told = re.search(r"TELL (\S+) (.+)", self.last)
        if told and self.send:
            return [(self.send, {"sessionKey": told[1], "message": told[2].strip(), "timeoutSeconds": 20})]
        named = re.search(r"CALL (\S+) (\{.*\})", self.last)
        if named:
            return [(named[1], json.loads(named[2]))]
        commands = [command.strip() for command in re.findall(r"RUN (.+)", self.last)]
        return [self._shell_call(self.shell, command) for command in commands if self.shell is not None]

    def _shell_call(self, name: str, command: str) -> tuple[str, Json]:
        if name == "exec_command":
            return name, {"cmd": command}
        if name == "shell":
            return name, {"command": ["bash", "-lc", command]}
        return name, {"command": command, "description": "run it"}

    def hangs(self) -> bool:
        return "HANG" in self.last and self.result is None

    def pause_s(self) -> float:
        """The pause after the beginning of the answer."""
        found = re.search(r"SLOWLY (\d+)", self.last)
        return float(found[1]) if found and self.result is None else 0.0

    def answer(self) -> str:
        if self.result is not None:
            return f"The command printed: {self.result}"
        return f"Answer {len(self.texts)} to: {self.last}"


def anthropic_turn(body: Json) -> Turn:
    texts, result = [], None
    for message in body.get("messages", []):
        if message["role"] != "user":
            continue
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        own = [b["text"] for b in blocks if b["type"] == "text" and not b["text"].lstrip().startswith("<")]
        results = [b for b in blocks if b["type"] == "tool_result"]
        texts += own[-1:]
        result = _plain(results[-1]["content"]) if results else None if own else result
    return Turn(texts, result, [tool.get("name", "") for tool in body.get("tools") or []])


def anthropic_events(turn: Turn, model: str, number: int) -> list[Json]:
    usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 0, "output_tokens": 1}
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "usage": usage,
    }
    events: list[Json] = [{"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}]

    def block(index: int, start: Json, deltas: list[Json]) -> None:
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})

    calls = turn.calls()
    if calls:
        thinking = [
            {"type": "thinking_delta", "thinking": "I shall run it."},
            {"type": "signature_delta", "signature": "c2ln"},
        ]
        block(0, {"type": "thinking", "thinking": "", "signature": ""}, thinking)
        block(1, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "Let me look."}])
        for index, (name, given) in enumerate(calls, 2):
            arguments = json.dumps(given)
            pieces = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:9], arguments[9:])]
            ident = f"toolu_{number}" if index == 2 else f"toolu_{number}_{index}"
            block(index, {"type": "tool_use", "id": ident, "name": name, "input": {}}, pieces)
    else:
        text = turn.answer()
        half = len(text) // 2
        block(
            0,
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": part} for part in (text[:half], text[half:])],
        )
    if turn.hangs():
        return events[:3]
    reason = "tool_use" if calls else "end_turn"
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 7},
        }
    )
    return [*events, {"type": "message_stop"}]


def responses_turn(body: Json) -> Turn:
    texts, result = [], None
    for item in body.get("input", []):
        if item.get("type") == "message" and item["role"] == "user":
            own = [part["text"] for part in item["content"] if part["type"] == "input_text"]
            own = [text for text in own if not text.lstrip().startswith("<") and not text.startswith("# AGENTS")]
            texts += own[-1:]
            result = None if own else result
        elif str(item.get("type")).endswith("_call_output"):
            result = _plain(item["output"])
    # The tools of one tool server are in a namespace.
    tools = [
        f"{tool['name']}/{one['name']}" if tool.get("type") == "namespace" else one.get("name", "")
        for tool in body.get("tools") or []
        for one in tool.get("tools") or [tool]
    ]
    return Turn(texts, result, tools)


def responses_events(turn: Turn, model: str, number: int) -> list[Json]:
    events: list[Json] = [{"type": "response.created", "response": {"id": f"resp_{number}", "model": model}}]
    calls = turn.calls()
    item: Json
    if calls:
        thought = {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": "I shall run it."}],
        }
        events.append(
            {"type": "response.output_item.done", "output_index": 0, "item": {**thought, "encrypted_content": "e"}}
        )
        for index, (name, arguments) in enumerate(calls, 1):
            namespace, _, own = name.rpartition("/")
            ident = f"{number}" if index == 1 else f"{number}_{index}"
            item = {"type": "function_call", "id": f"fc_{ident}", "call_id": f"call_{ident}", "name": own}
            if namespace:
                item["namespace"] = namespace
            if set(arguments) == {"input"}:
                item |= {"type": "custom_tool_call", "input": arguments["input"]}
            else:
                item["arguments"] = json.dumps(arguments)
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    else:
        text = turn.answer()
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}})
        events.append(
            {"type": "response.output_text.delta", "item_id": f"msg_{number}", "output_index": 0, "delta": text}
        )
        done = {**item, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        events.append({"type": "response.output_item.done", "output_index": 0, "item": done})
    if turn.hangs():
        return events[:3]
    details = {"input_tokens_details": {"cached_tokens": 40}, "output_tokens_details": {"reasoning_tokens": 2}}
    usage = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107, **details}
    return [
        *events,
        {"type": "response.completed", "response": {"id": f"resp_{number}", "model": model, "usage": usage}},
    ]


def gemini_turn(body: Json) -> Turn:
    texts, result = [], None
    for content in body.get("contents", []):
        if content.get("role", "user") != "user":
            continue
        own = [
            part["text"] for part in content["parts"] if "text" in part and not part["text"].lstrip().startswith("<")
        ]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        texts += own[-1:]
        result = _plain(results[-1]["response"].get("output", "")) if results else None if own else result
    tools = [one["name"] for tool in body.get("tools") or [] for one in tool.get("functionDeclarations", [])]
    return Turn(texts, result, tools)


def gemini_events(turn: Turn, model: str) -> list[Json]:
    def chunk(parts: list[Json], **more: Any) -> Json:
        usage = {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 40,
            "candidatesTokenCount": 7,
            "totalTokenCount": 107,
        }
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **more}
        return {"candidates": [candidate], "modelVersion": model, "usageMetadata": usage, "responseId": "r1"}

    calls = turn.calls()
    if calls:
        parts: list[Json] = [{"functionCall": {"name": name, "args": given}} for name, given in calls]
        return [chunk([{"text": "I shall run it.", "thought": True}]), chunk(parts, finishReason="STOP")]
    text = turn.answer()
    half = len(text) // 2
    events = [chunk([{"text": text[:half]}]), chunk([{"text": text[half:]}], finishReason="STOP")]
    return events[:1] if turn.hangs() else events


def _plain(content: Any) -> str:
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else json.dumps(content)
    # Codex and Gemini put a header before what the command printed, Claude Code and Gemini something after it.
    text = text.rpartition("Output:")[2]
    return re.split(r"<system-reminder>|\n(?:Process Group PGID|Exit Code|Background PIDs|</)", text)[0].strip()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_path: str | None = None
    lock = threading.Lock()
    number = 0

    def do_HEAD(self) -> None:
        self._json({})

    def do_GET(self) -> None:
        self._json({"data": [], "models": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.log_path is not None:
            with self.lock, open(self.log_path, "a", encoding="utf-8") as log:
                log.write(json.dumps({"path": self.path, "body": body}) + "\n")
        model = str(body.get("model", "stub"))
        with self.lock:
            Handler.number += 1
            number = self.number
        if "count_tokens" in self.path or ":countTokens" in self.path:
            self._json({"input_tokens": 100, "totalTokens": 100})
        elif "/messages" in self.path:
            turn = anthropic_turn(body)
            self._stream([(event["type"], event) for event in anthropic_events(turn, model, number)], turn)
        elif "/responses" in self.path:
            turn = responses_turn(body)
            self._stream([(event["type"], event) for event in responses_events(turn, model, number)], turn)
        elif ":streamGenerateContent" in self.path:
            turn = gemini_turn(body)
            self._stream([(None, event) for event in gemini_events(turn, "gemini-stub")], turn)
        elif ":generateContent" in self.path:
            self._json(gemini_events(Turn(["{}"], None, []), "gemini-stub")[-1])
        else:
            self._json({})

    def _json(self, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: list[tuple[str | None, Json]], turn: Turn) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, (name, event) in enumerate(events):
            if number == 1:
                threading.Event().wait(turn.pause_s())
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        if turn.hangs():
            # Until the client goes away.
            self.rfile.read(1)

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log")
    Handler.log_path = parser.parse_args().log
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
