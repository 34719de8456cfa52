"""`sessiond acp`: the sessions of the daemon as an agent of an editor, by the Agent Client Protocol over stdio.

A client of the daemon's socket like any other. Imports the standard library only: an editor waits for the first answer.
Source: the Agent Client Protocol, version 1.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, NoReturn

from sessiond import __version__
from sessiond.acp import frames
from sessiond.acp.editor_calls import EditorCalls
from sessiond.acp.frames import BadFrame, EditorAnswer, EditorNotice, EditorRequest, FrameId
from sessiond.acp.lane import Answer, SessionLane
from sessiond.acp.opened import OpenedSession
from sessiond.acp.refusals import CALL_S, Refusal, refusal_of, refuse_unopened, require_folder, require_text
from sessiond.client import Client, ClientError

PROTOCOL_VERSION = 1
# Requests of sessions are answered in threads: one a session, and one for each that opens or lists.
MAX_REQUESTS = 256
# Each open session has a connection of its own, and the daemon's are for others, too.
MAX_SESSIONS = 64
# How many requests that open or list are put to the daemon at once, which takes 64 of one connection.
MAX_AT_ONCE = 8
# How long requests but prompts may take to be answered after the end of standard input.
LAST_ANSWERS_S = 5.0
# Those that name a session, whose requests follow one another; and of these, those that open it.
_OF_A_SESSION = ("session/load", "session/resume", "session/prompt", "session/close")
_OPENING = ("session/load", "session/resume")
_REFUSED = {
    "authenticate": "there is nothing to authenticate: who may start this program acts as the user",
    "session/set_mode": "sessions of sessiond have no modes: the agent's configuration says what it may do",
    "session/set_config_option": "sessions of sessiond have no options here: see `sessiond patch`",
}
_CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": False, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}


class AcpServer:
    """Answers one editor. `write` takes whole lines and `say` remarks for the log, both from any thread."""

    def __init__(
        self,
        connect: Callable[[], Client],
        agent: str | None,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._connect, self._agent, self._write, self._say = connect, agent, write, say
        self._client = connect()
        self._calls = EditorCalls(write)
        # Prompts wait for the ends of runs on a connection of their own: so many would leave no request to cancel one.
        self._waits = connect()
        self._lock = threading.Condition()  # guards what follows; notified of each answer
        self._lanes: dict[str, SessionLane] = {}
        self._in_flight: set[FrameId] = set()
        self._count = 0  # of requests in flight, those with the id null too
        self._prompt_count = 0  # of those, prompts
        self._said: set[str] = set()
        self._opening_count = 0  # sessions that are being created
        self._places = threading.Semaphore(MAX_AT_ONCE)

    def connect(self) -> None:
        """Connect to the daemon, and see that it has the agent of new sessions. ClientError."""
        caller = self._client.caller
        if self._agent is None or caller.get("sessionKey") or caller.get("agentId"):
            return  # which agents they are that others may name is for the daemon to say
        agents = self._client.call("agents_list", timeout_s=CALL_S)["agents"]
        if not any(agent["id"] == self._agent for agent in agents):
            raise ClientError(f"no agent '{self._agent}'; the agents there are: sessiond agents")

    def take(self, line: bytes) -> None:
        """Handle one line of the editor. What may take time goes on in other threads."""
        try:
            message = frames.parse(line)
        except BadFrame as error:
            self._write(error.answer)
            return
        match message:
            case EditorRequest():
                self._take_request(message)
            case EditorNotice(method="session/cancel"):
                self._cancel(message.params.get("sessionId"))
            case EditorNotice(method="$/cancel_request"):
                with self._lock:
                    lanes = list(self._lanes.values())
                for lane in lanes:
                    lane.cancel_request(message.params.get("requestId"))
            case EditorAnswer():
                self._calls.take(message)
            case EditorNotice():
                pass

    def finish(self) -> None:
        """Give requests but prompts LAST_ANSWERS_S to be answered."""
        with self._lock:
            self._lock.wait_for(lambda: self._count == self._prompt_count, LAST_ANSWERS_S)

    def _take_request(self, request: EditorRequest) -> None:
        with self._lock:
            is_doubled = request.id is not None and request.id in self._in_flight
            is_full = self._count >= MAX_REQUESTS
            if not is_doubled and not is_full:
                self._count += 1
                self._prompt_count += request.method == "session/prompt"
                self._in_flight.add(request.id)
        if is_doubled:
            self._write(frames.refuse(None, frames.INVALID_REQUEST, "a request with this id is being answered"))
        elif is_full:
            text = f"{MAX_REQUESTS} requests are being answered; wait for an answer"
            self._write(frames.refuse(request.id, frames.INTERNAL_ERROR, text, {"type": "overloaded"}))
        else:
            self._route(request)

    def _route(self, request: EditorRequest) -> None:
        method = request.method
        session_id = request.params.get("sessionId")
        if method in _OF_A_SESSION and isinstance(session_id, str) and session_id:
            self._put(session_id, request)
        elif method == "session/new":
            self._begin(request, lambda: self._create(request.params))
        elif method == "session/list":
            self._begin(request, lambda: self._list(request.params))
        else:
            self.answer(request, lambda: self._answer_at_once(request))

    def _answer_at_once(self, request: EditorRequest) -> dict[str, Any]:
        if request.method == "initialize":
            return _initialize(request.params)
        if request.method in _OF_A_SESSION:
            require_text(request.params, "sessionId")
        if request.method in _REFUSED:
            raise Refusal(frames.INVALID_PARAMS, _REFUSED[request.method])
        raise Refusal(frames.METHOD_NOT_FOUND, f"this agent has no method {request.method[:80]}")

    def _put(self, session_id: str, request: EditorRequest) -> None:
        with self._lock:
            lane = self._lanes.get(session_id)
            opens = request.method in _OPENING and (lane is None or lane.is_closed)
            is_full = opens and not self._has_room()
            if opens and not is_full:
                lane = lane or self._add_lane(session_id)
            if lane is not None and not is_full:
                if request.method == "session/close":
                    lane.cancel()
                lane.put(request)
        if is_full:
            self.answer(request, _refuse_more)
        elif lane is None:
            self.answer(request, partial(_refuse_unopened, session_id))

    def _cancel(self, session_id: Any) -> None:
        with self._lock:
            lane = self._lanes.get(session_id) if isinstance(session_id, str) else None
        if lane is not None:
            lane.cancel()

    def _begin(self, request: EditorRequest, make: Answer) -> None:
        def answer() -> None:
            with self._places:
                self.answer(request, make)

        threading.Thread(target=answer, daemon=True).start()

    def answer(self, request: EditorRequest, make: Answer) -> None:
        """Answer a request with what `make` returns, or with its error."""
        try:
            line = frames.answer(request.id, make())
        except Refusal as refusal:
            line = frames.refuse(request.id, refusal.code, refusal.message, refusal.data)
        except (AttributeError, LookupError, TypeError, ValueError) as fault:
            self._say_once(f"cannot read the daemon's answer to {request.method}: {type(fault).__name__} {fault}")
            text = "the daemon's answer cannot be read: it may be of another release than this program"
            line = frames.refuse(request.id, frames.INTERNAL_ERROR, text)
        # Removed first: the editor may use the id again as soon as it has the answer.
        with self._lock:
            self._in_flight.discard(request.id)
        self._write(line)
        with self._lock:
            self._count -= 1
            self._prompt_count -= request.method == "session/prompt"
            self._lock.notify_all()

    def open_session(self, session_id: str) -> OpenedSession:
        """The session that the editor calls so. ClientError if there is none."""
        found = self._client.call("sessions.resolve", key=session_id)
        return self._make_session(found["key"], session_id)

    def _make_session(self, key: str, session_id: str) -> OpenedSession:
        def send(update: dict[str, Any]) -> None:
            self._write(frames.notice("session/update", {"sessionId": session_id, "update": update}))

        return OpenedSession(
            key, self._client, self._waits, self._connect, session_id=session_id, send=send, calls=self._calls
        )

    def retire(self, lane: SessionLane) -> None:
        """Forget a lane that has no session and nothing to do."""
        with self._lock:
            if lane.is_unused() and self._lanes.get(lane.session_id) is lane:
                del self._lanes[lane.session_id]

    def note_tool_servers(self, params: dict[str, Any]) -> None:
        """Check the parameter `mcpServers`, and say once that it is not used. Refusal."""
        servers = params.get("mcpServers")
        if servers is not None and not isinstance(servers, list):
            raise Refusal(frames.INVALID_PARAMS, "`mcpServers` is to be a list")
        if servers:
            self._say_once(
                "the editor's MCP servers are not passed on: agents of sessiond have those of their configuration"
            )

    def _say_once(self, text: str) -> None:
        with self._lock:
            is_new = text not in self._said
            self._said.add(text)
        if is_new:
            self._say(text)

    def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        from sessiond.acp.listing import list_sessions  # imported on first use, to keep the start quick

        try:
            return list_sessions(self._client, params)
        except ClientError as error:
            raise refusal_of(error) from None

    def _create(self, params: dict[str, Any]) -> dict[str, Any]:
        cwd = require_folder(params)
        self.note_tool_servers(params)
        with self._lock:
            if not self._has_room():
                _refuse_more()
            self._opening_count += 1
        try:
            return self._create_one(cwd)
        finally:
            with self._lock:
                self._opening_count -= 1

    def _has_room(self) -> bool:
        open_count = sum(not lane.is_closed for lane in self._lanes.values())
        return open_count + self._opening_count < MAX_SESSIONS

    def _add_lane(self, session_id: str) -> SessionLane:
        lane = self._lanes[session_id] = SessionLane(session_id, self)
        return lane

    def _create_one(self, cwd: str) -> dict[str, Any]:
        key = f"acp:{_uuid()}"
        try:
            made = self._client.call(
                "sessions.create",
                key=f"agent:{self._agent}:{key}" if self._agent else key,
                cwd=cwd,
                timeout_s=CALL_S,
            )
            session = self._make_session(made["key"], made["sessionId"])
            session.follow()
            session.show_questions()
        except ClientError as error:
            raise refusal_of(error) from None
        with self._lock:
            self._lanes[made["sessionId"]] = SessionLane(made["sessionId"], self, session)
        return {"sessionId": made["sessionId"], "_meta": {"sessionKey": made["key"]}}


def _refuse_more() -> NoReturn:
    text = f"{MAX_SESSIONS} sessions are open; close one first (session/close)"
    raise Refusal(frames.INTERNAL_ERROR, text, {"type": "overloaded"})


def _refuse_unopened(session_id: str) -> NoReturn:
    raise refuse_unopened(session_id)


def _initialize(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    if not isinstance(asked, int) or isinstance(asked, bool):
        raise Refusal(frames.INVALID_PARAMS, "`protocolVersion` is missing or no whole number")
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": _CAPABILITIES,
        "agentInfo": {"name": "sessiond", "title": "sessiond", "version": __version__},
        "authMethods": [],
    }


def _uuid() -> str:
    """A random UUID (RFC 9562, version 4); the module `uuid` costs ten milliseconds of the start."""
    number = secrets.randbits(128) & ~(0xF000 << 64) & ~(0xC000 << 48) | (0x4000 << 64) | (0x8000 << 48)
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def read_lines(
    stream: IO[bytes], refuse: Callable[[bytes], None], most_bytes: int = frames.MAX_LINE_BYTES
) -> Iterator[bytes]:
    """The lines of `stream` up to that length. For each longer line `refuse` is called with the answer to it."""
    while line := stream.readline(most_bytes):
        if len(line) == most_bytes and not line.endswith(b"\n"):
            tail = line[-frames.TAIL_BYTES :]
            while not tail.endswith(b"\n") and (rest := stream.readline(most_bytes)):
                tail = (tail + rest)[-frames.TAIL_BYTES :]
            refuse(frames.refuse_long_line(line[: frames.HEAD_BYTES], tail))
        elif line.strip():
            yield line


class EditorOutput:
    """Standard output. The program ends when nobody reads it any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_gone = False

    def write(self, line: bytes) -> None:
        """Write a line, without Python's buffer, whose lock a daemon thread could still hold at exit."""
        with self._lock:
            if self._is_gone:
                return
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(1, view) :]
            except OSError:
                self._is_gone = True
                os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread, which reads


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # closed
        sys.stderr.write(f"sessiond acp: {text}\n")
        sys.stderr.flush()


def _end(number: int, _frame: object) -> NoReturn:
    """Signal handler: end as at the end of standard input. A second signal kills the process."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(0)


def run(socket: str | None, agent: str | None) -> int:
    """Serve one editor on stdio; the exit status. ClientError if no daemon can be reached at the start."""
    output = EditorOutput()
    server = AcpServer(lambda: Client(socket, name="sessiond-acp", version=__version__), agent, output.write, _say)
    server.connect()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    with suppress(SystemExit):
        for line in read_lines(sys.stdin.buffer, output.write):
            server.take(line)
        server.finish()
    return 0
