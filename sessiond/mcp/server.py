"""`sessiond mcp`: the session tools as an MCP server over stdio.

A client of the daemon's socket like any other. It starts even if the daemon is not running; then each tool answers with
an error that says so. Imports the standard library only, because agent programs offer a server's tools in their first
turn only if it answers at once. Source: the MCP specification 2025-11-25, "Lifecycle", "Tools", "Progress",
"Cancellation".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, NoReturn

from sessiond import __version__
from sessiond.client import Cancellation, ClientError, DaemonNotRunning, RpcError
from sessiond.mcp import messages, tools
from sessiond.mcp.calls import ToolCall, ask, build_call, build_read_call, hint_of, useful_part
from sessiond.mcp.daemon_connection import DaemonConnection
from sessiond.mcp.messages import MalformedMessage, ToolClientNotice, ToolClientRequest

# The newest first. A client that asks for another version is offered the newest one, as the specification says.
PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
# Between two progress notifications. Clients may reset their time limit with each of them.
PROGRESS_S = 1.0
# Each call under way has a thread. No model makes as many calls at once.
MAX_CALLS = 64
# The default limit of the daemon's own messages.
MAX_LINE_BYTES = 16 * 1024 * 1024
# How long calls that are not waiting may take to be answered after the end of standard input.
LAST_ANSWERS_S = 5.0
START_HINT = "start it with: systemctl --user start sessiond (or: sessiond serve)"

Result = dict[str, Any]


class McpServer:
    """Answers one MCP client. `write` takes whole lines, from any thread."""

    def __init__(self, connection: DaemonConnection, write: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._write = write
        self._writing = threading.Lock()
        # Held while unread messages are sent to the client and marked as read in the daemon, so that the next
        # `sessions_inbox` call does not return them again.
        self._inbox_lock = threading.Lock()
        self._calls_lock = threading.Lock()  # guards what follows
        self._calls: dict[messages.RequestId, tuple[Cancellation, float]] = {}
        # The threads of the calls. A thread ends after its answer was sent, when its id may already be in use again.
        self._threads: set[threading.Thread] = set()
        # Whether the tools for questions were in the list that the client has; None until it has one.
        self._listed_answering: bool | None = None

    def take(self, line: bytes) -> None:
        """Handle one line of the client. Tool calls continue in threads of their own."""
        try:
            message = messages.parse(line)
        except MalformedMessage as error:
            self._send(error.answer)
            return
        match message:
            case ToolClientRequest():
                self._take_request(message)
            case ToolClientNotice(method="notifications/cancelled"):
                self._cancel(message.params.get("requestId"))
            case _:
                pass

    def finish(self) -> None:
        """Cancel the calls that are waiting, and give the others LAST_ANSWERS_S to be answered."""
        with self._calls_lock:
            calls = list(self._calls.values())
            threads = list(self._threads)
        for cancellation, wait_s in calls:
            if wait_s:
                cancellation.cancel()
        for thread in threads:
            thread.join(LAST_ANSWERS_S)

    def _take_request(self, request: ToolClientRequest) -> None:
        match request.method:
            case "initialize":
                self._send(messages.result(request.id, self._initialize(request.params)))
            case "ping":
                self._send(messages.result(request.id, {}))
            case "tools/list":
                # All tools, whatever the daemon supports, which may change while the client runs; those for questions
                # only for a caller that may answer.
                self._listed_answering = self._connection.may_answer()
                more = tools.ANSWERING if self._listed_answering else []
                self._send(messages.result(request.id, {"tools": [*tools.LISTED, *more]}))
            case "tools/call":
                self._start_call(request)
            case method:
                text = f"this server has no method {method}"
                self._send(messages.error(request.id, messages.METHOD_NOT_FOUND, text))

    def _initialize(self, params: messages.Params) -> Result:
        client = params.get("clientInfo")
        name = client.get("name") if isinstance(client, dict) else None
        self._connection.set_client_name(name if isinstance(name, str) else "", self._list_again)
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "sessiond", "title": "sessiond", "version": __version__},
            "instructions": tools.INSTRUCTIONS,
        }

    def _list_again(self) -> None:
        """Tell the client to list the tools again if it did so while no daemon said whether it may answer questions."""
        if self._listed_answering is False and self._connection.may_answer():
            self._send(messages.notification("notifications/tools/list_changed", {}))

    def _start_call(self, request: ToolClientRequest) -> None:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        may_answer = name in tools.ANSWERING_NAMES and self._connection.may_answer()
        if not isinstance(name, str) or (name not in tools.NAMES and not may_answer):
            # A tool error, because many clients do not show protocol errors to the model.
            text = f"there is no tool {str(name)[:80]}; there are {', '.join(tools.NAMES)}"
            self._send(messages.result(request.id, _failure(text)))
            return
        if arguments is not None and not isinstance(arguments, dict):
            self._send(messages.error(request.id, messages.INVALID_PARAMS, "`arguments` is to be an object"))
            return
        try:
            call = build_call(name, arguments or {})
        except ClientError as error:
            self._send(messages.result(request.id, _refusal(error)))
            return
        cancellation = Cancellation()
        meta = request.params.get("_meta")
        progress_token = meta.get("progressToken") if isinstance(meta, dict) else None
        work = (request.id, name, call, cancellation, progress_token)
        thread = threading.Thread(target=self._answer, args=work, daemon=True)
        with self._calls_lock:
            is_free = len(self._calls) < MAX_CALLS and request.id not in self._calls
            if is_free:
                self._calls[request.id] = (cancellation, call.wait_s)
                self._threads.add(thread)
        if is_free:
            thread.start()
        else:
            text = f"{MAX_CALLS} calls are being answered, or one with this id; wait for an answer, then call again"
            self._send(messages.result(request.id, _failure(text)))

    def _answer(
        self,
        request_id: messages.RequestId,
        tool: str,
        call: ToolCall,
        cancellation: Cancellation,
        progress_token: messages.RequestId | None,
    ) -> None:
        ended = threading.Event()
        if call.wait_s and progress_token is not None:
            report = (progress_token, call.wait_s, ended)
            threading.Thread(target=self._report, args=report, daemon=True).start()
        mark_read = None
        try:
            if tool == "sessions_inbox":
                with self._inbox_lock:
                    pass
            answer = ask(self._connection, call, cancellation)
            mark_read = build_read_call(tool, answer)
            data = useful_part(tool, answer)
            result = {"content": _texts(_in_words(tool, answer)), "structuredContent": data, "isError": False}
        except ClientError as error:
            result = _refusal(error, hint_of(tool, call, error))
        with self._writing:
            ended.set()
        with self._calls_lock:
            self._calls.pop(request_id, None)
        # A cancelled call gets no answer.
        if not cancellation.is_cancelled:
            self._send_answer(messages.result(request_id, result), mark_read)
        with self._calls_lock:
            self._threads.discard(threading.current_thread())

    def _send_answer(self, line: bytes, mark_read: ToolCall | None) -> None:
        """Send an answer, then make the request `mark_read`, if any, which marks the messages in it as read."""
        if mark_read is None:
            self._send(line)
            return
        with self._inbox_lock:
            self._send(line)
            # If this fails, the messages are delivered a second time, which is better than losing them.
            with suppress(ClientError):
                ask(self._connection, mark_read, Cancellation())

    def _report(self, progress_token: messages.RequestId, wait_s: float, ended: threading.Event) -> None:
        """Send progress notifications for a call, for a client that asked for them."""
        waited_s = 0.0
        while True:
            text = f"waiting, {waited_s:.0f} of {wait_s:.0f} s"
            params = {"progressToken": progress_token, "progress": waited_s, "total": wait_s, "message": text}
            with self._writing:
                if ended.is_set():
                    return
                self._write(messages.notification("notifications/progress", params))
            if ended.wait(PROGRESS_S):
                return
            waited_s += PROGRESS_S

    def _cancel(self, request_id: Any) -> None:
        with self._calls_lock:
            call = self._calls.get(request_id) if isinstance(request_id, messages.RequestId) else None
        if call is not None:
            call[0].cancel()

    def _send(self, line: bytes) -> None:
        with self._writing:
            self._write(line)


def _in_words(tool: str, answer: Result) -> str:
    # Imported on first use, to keep the start of the server quick.
    from sessiond.mcp.words import words

    try:
        return words(tool, answer)
    except (LookupError, TypeError, ValueError):
        return json.dumps(answer)  # the daemon is of another release and has other fields


def _refusal(error: ClientError, hint: str = "") -> Result:
    if isinstance(error, RpcError):
        # The text is for the model, `_meta` for programs.
        what = {"code": error.code, "type": error.slug, "data": error.data}
        return _failure(error.message + hint) | {"_meta": {"sessiond/error": what}}
    if isinstance(error, DaemonNotRunning):
        return _failure(f"{error}; {START_HINT}")
    return _failure(str(error))


def _failure(text: str) -> Result:
    return {"content": _texts(text), "isError": True}


def _texts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def read_lines(stream: IO[bytes], refuse: Callable[[bytes], None]) -> Iterator[bytes]:
    """The lines of `stream` up to MAX_LINE_BYTES. For each longer line `refuse` is called with the error to send."""
    while line := stream.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            text = f"the message is longer than {MAX_LINE_BYTES} bytes"
            refuse(messages.error(None, messages.INVALID_REQUEST, text))
        elif line.strip():
            yield line


def run(socket: str | None, session: str | None) -> int:
    """Serve one client on stdio; the exit status. `socket` and `session` are the options of the command line."""
    connection = DaemonConnection(socket=socket, session=session)
    server = McpServer(connection, _write_all)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with suppress(BrokenPipeError):  # the client is gone
            for line in read_lines(sys.stdin.buffer, _write_all):
                server.take(line)
            server.finish()
    except SystemExit:
        pass
    finally:
        connection.close()
    return 0


def _end(number: int, _frame: object) -> NoReturn:
    """Signal handler: end as at the end of standard input. A second signal kills the process."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(0)


def _write_all(line: bytes) -> None:
    """Write to standard output without Python's buffer, whose lock a daemon thread could still hold at exit."""
    view = memoryview(line)
    while view:
        view = view[os.write(1, view) :]
