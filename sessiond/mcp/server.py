"""`sessiond mcp`: the tools on standard input and output, for a program that speaks MCP.

A client of the daemon's socket like any other. It starts without the daemon too; then each tool says that it is not
there. On the standard library alone, because agent programs take a server's tools into their first turn only where it
answers at once. Source: the MCP specification 2025-11-25, "Lifecycle", "Tools", "Progress", "Cancellation".
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
from sessiond.mcp.calls import ToolCall, ask, call_of, hint_of, reading_of, useful_part
from sessiond.mcp.daemon_connection import DaemonConnection
from sessiond.mcp.messages import MalformedMessage, ToolClientNotice, ToolClientRequest

# The newest first. Of newer ones the client is offered the newest that is known here, as the specification says.
PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
# Often enough to keep a client's own time limit from running out, seldom enough to be no noise.
PROGRESS_S = 1.0
# More than any model calls at once; each is a thread.
MAX_CALLS = 64
# As long as the daemon's own messages.
MAX_LINE_BYTES = 16 * 1024 * 1024
# What was asked before standard input ended is answered, unless it waits for something.
LAST_ANSWERS_S = 5.0
START_HINT = "start it with: systemctl --user start sessiond (or: sessiond serve)"

Result = dict[str, Any]


class McpServer:
    """Answers one MCP client. `write` takes whole lines, from any thread."""

    def __init__(self, connection: DaemonConnection, write: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._write = write
        self._writing = threading.Lock()
        # Held from the answer with unread messages until the daemon knows that they are read: what is asked in answer
        # to that must not show them again.
        self._handing_over = threading.Lock()
        self._calls_lock = threading.Lock()  # guards what follows
        self._calls: dict[messages.RequestId, tuple[Cancellation, float]] = {}
        # Of calls that are being asked or handed over; an answered call's id may be used again at once.
        self._threads: set[threading.Thread] = set()

    def take(self, line: bytes) -> None:
        """Do what a line of the client says. What takes time goes on in a thread of its own."""
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
        """Answer what is still being asked, for some seconds; what waits for something is called off."""
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
                # All of them, whatever the daemon can do: which it is may change while the client lives.
                self._send(messages.result(request.id, {"tools": tools.LISTED}))
            case "tools/call":
                self._start_call(request)
            case method:
                text = f"this server has no method {method}"
                self._send(messages.error(request.id, messages.METHOD_NOT_FOUND, text))

    def _initialize(self, params: messages.Params) -> Result:
        client = params.get("clientInfo")
        name = client.get("name") if isinstance(client, dict) else None
        self._connection.introduce(name if isinstance(name, str) else "")
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "sessiond", "title": "sessiond", "version": __version__},
            "instructions": tools.INSTRUCTIONS,
        }

    def _start_call(self, request: ToolClientRequest) -> None:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if name not in tools.NAMES:
            # A tool error and no protocol error: that one many clients do not show to the model.
            text = f"there is no tool {str(name)[:80]}; there are {', '.join(tools.NAMES)}"
            self._send(messages.result(request.id, _failure(text)))
            return
        if arguments is not None and not isinstance(arguments, dict):
            self._send(messages.error(request.id, messages.INVALID_PARAMS, "`arguments` is to be an object"))
            return
        try:
            call = call_of(name, arguments or {})
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
        reading = None
        try:
            if tool == "sessions_inbox":
                with self._handing_over:
                    pass
            answer = ask(self._connection, call, cancellation)
            reading = reading_of(tool, answer)
            data = useful_part(tool, answer)
            said = {"content": _texts(_in_words(tool, answer)), "structuredContent": data, "isError": False}
        except ClientError as error:
            said = _refusal(error, hint_of(tool, call, error))
        with self._writing:
            ended.set()
        with self._calls_lock:
            self._calls.pop(request_id, None)
        # A call that was called off has no answer any more.
        if not cancellation.is_cancelled:
            self._hand_over(messages.result(request_id, said), reading)
        with self._calls_lock:
            self._threads.discard(threading.current_thread())

    def _hand_over(self, line: bytes, reading: ToolCall | None) -> None:
        """Send an answer; where it has unread messages they are read from then on, in every window of the program."""
        if reading is None:
            self._send(line)
            return
        with self._handing_over:
            self._send(line)
            # Where that fails they come once more, which is better than never.
            with suppress(ClientError):
                ask(self._connection, reading, Cancellation())

    def _report(self, progress_token: messages.RequestId, wait_s: float, ended: threading.Event) -> None:
        """Tell a client that asked for it how long it has been waiting."""
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
    # Imported late: only the first answers have to come at once.
    from sessiond.mcp.words import words

    try:
        return words(tool, answer)
    except (LookupError, TypeError, ValueError):
        return json.dumps(answer)  # a daemon of another release, with other fields


def _refusal(error: ClientError, hint: str = "") -> Result:
    if isinstance(error, RpcError):
        # A model reads the sentence; a program finds the rest here.
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
    """The lines of `stream` that are no longer than a message may be; `refuse` is given the answer to each other."""
    while line := stream.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            text = f"the message is longer than {MAX_LINE_BYTES} bytes"
            refuse(messages.error(None, messages.INVALID_REQUEST, text))
        elif line.strip():
            yield line


def run(socket: str | None, session: str | None) -> int:
    """The exit status. `socket` and `session` are the command line's; None: as the environment and the client say."""
    connection = DaemonConnection(socket=socket, session=session)
    server = McpServer(connection, _write_all)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with suppress(BrokenPipeError):  # the client went without a word
            for line in read_lines(sys.stdin.buffer, _write_all):
                server.take(line)
            server.finish()
    except SystemExit:
        pass
    finally:
        connection.close()
    return 0


def _end(number: int, _frame: object) -> NoReturn:
    """End as at the end of standard input; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(0)


def _write_all(line: bytes) -> None:
    """To standard output, past Python's buffers: a thread that ends with the process cannot leave a lock behind."""
    view = memoryview(line)
    while view:
        view = view[os.write(1, view) :]
