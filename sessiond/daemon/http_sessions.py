"""The HTTP routes that need sessions: history (as JSON or as Server-Sent Events), kill, metrics.

They call the handlers of the methods, so that scopes, visibility and errors are the same as on every other transport.
Knows no sockets. Source: protocol.md, "HTTP".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from sessiond.daemon import metrics
from sessiond.errors import Forbidden, InvalidParams, quote
from sessiond.events import replay
from sessiond.events.subscription import FollowPlace, LiveSoFar, Subscription
from sessiond.methods import sessions_history, sessions_kill
from sessiond.methods.following import EventFilter
from sessiond.methods.services import Context, Services
from sessiond.methods.sessions_history import SessionsHistoryParams, SessionsHistoryResult
from sessiond.model.caller import Caller
from sessiond.model.event import (
    Event,
    LiveEvent,
    MachineChanged,
    MessageEvent,
    QuestionAsked,
    QuestionClosed,
    ResyncEvent,
)
from sessiond.model.lax import decoder_of
from sessiond.model.record import TOOL_ROLES
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.budget import Share
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Session
from sessiond.transports.exchange import (
    JSON_TYPE,
    Answer,
    EventStreamAnswer,
    HttpError,
    HttpRequest,
    HttpResponse,
    json_response,
)
from sessiond.transports.routes import Router
from sessiond.transports.sse import EventStream


def add_session_routes(router: Router, services: Services) -> None:
    """`GET /sessions/{key}/history`, `POST /sessions/{key}/kill`, `GET /metrics`."""
    router.add("GET", "/sessions/{key}/history", partial(_history, services), query=_HISTORY_QUERY)
    router.add("POST", "/sessions/{key}/kill", partial(_kill, services))
    router.add("GET", "/metrics", partial(_metrics, services))


_HISTORY_QUERY = ("limit", "includeTools", "includeSystem", "raw", "cursor", "follow", "soFar")
_HISTORY_PARAMS = ParamsDecoder(SessionsHistoryParams)


def context_of(services: Services, request: HttpRequest) -> Context:
    """The context of a method's handler that a route calls."""
    return Context(caller=request.caller, peer=None, services=services, budgets=services.budgets, unsent=request.unsent)


def require_scope(caller: Caller, scope: str) -> None:
    """Raise Forbidden for a caller without the scope."""
    if not caller.has(scope):
        raise Forbidden(f"this needs the scope `{scope}`")


def require_json(request: HttpRequest) -> None:
    """Raise HttpError for a type that another page's form could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise HttpError(415, "unsupported_media_type", "Send application/json.")


async def _history(services: Services, request: HttpRequest) -> Answer:
    require_scope(request.caller, "read")
    await services.loaded.wait()
    query = request.query
    params = _HISTORY_PARAMS.convert(
        {
            "sessionKey": request.params["key"],
            "limit": _number(query, "limit"),
            "includeTools": read_flag(query, "includeTools", absent=False),
            "includeSystem": read_flag(query, "includeSystem", absent=False),
            "raw": read_flag(query, "raw", absent=False),
            "cursor": query.get("cursor"),
        }
    )
    streams = "text/event-stream" in request.headers.get("accept", "")
    # Parsed even if the header already asks for a stream, so that a malformed value is always refused.
    follows = read_flag(query, "follow", absent=False)
    so_far = partial(_text_so_far, services) if read_flag(query, "soFar", absent=False) else None
    if not streams and not follows:
        return json_response(await sessions_history.handle(context_of(services, request), params))
    if params.raw:
        raise InvalidParams("`raw` is for pages: a stream has messages, not lines", field="raw")
    session = await services.find_whole(request.caller, request.params["key"])
    if session.archived:
        raise no_such_session(request.params["key"])  # an archived session has no new messages to follow
    # Unlike a page, a stream includes tool results by default: a follower gets every message that is appended.
    tools = read_flag(query, "includeTools", absent=True)
    cursor = request.headers.get("last-event-id")
    if cursor:
        return EventStreamAnswer(
            partial(_follow, services, session.key, _resume(services, session, cursor), tools=tools, so_far=so_far)
        )
    page = await sessions_history.handle(context_of(services, request), params)
    start = replay.place_of(services.store, session, page.cursor, "cursor")
    return EventStreamAnswer(
        partial(_follow, services, session.key, start, page=page, tools=tools, so_far=so_far, unsent=request.unsent)
    )


def _resume(services: Services, session: Session, cursor: str) -> FollowPlace:
    """The place at which a reader resumes with `Last-Event-ID`."""
    try:
        return replay.place_of(services.store, session, cursor, "Last-Event-ID")
    except InvalidParams as error:
        if error.code != "cursor_stale":
            raise  # not a cursor of this daemon
        # A browser does not reconnect after an error response, so it gets a reset event and starts from the beginning.
        # The transcript that it shows may have been removed.
        return FollowPlace(session.session_id, 0, 0, "reset")


def _number(query: Any, name: str) -> float | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    try:
        if _WHOLE.fullmatch(text):
            return float(text)
    except (ValueError, OverflowError):
        pass
    raise InvalidParams(f"`{name}` is a whole number, not {quote(text[:40])}", field=name)


_WHOLE = re.compile(r"-?[0-9]{1,300}")  # `int` would also accept `1_0` and digits of other scripts


def read_flag(query: Any, name: str, *, absent: bool) -> bool:
    """The value of a query parameter that is 1 or 0. InvalidParams for any other text."""
    text = query.get(name)
    if text is None:
        return absent
    if text in ("1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise InvalidParams(f"`{name}` is 1 or 0, not {quote(text[:40])}", field=name)


class _RoleHead(msgspec.Struct, frozen=True, gc=False):
    role: object = None


_role_of = decoder_of(_RoleHead).decode


class SseSink:
    """The sink of a subscription that writes to an SSE stream. Holds one event; the subscription queues the rest."""

    def __init__(self, services: Services, stream: EventStream, *, tools: bool) -> None:
        self.services, self.stream, self._tools = services, stream, tools
        self._held: Event | None = None
        self._filled, self._emptied = trio.Event(), trio.Event()
        self._emptied.set()

    def ready(self) -> bool:
        return self._held is None

    def write(self, event: Event) -> None:
        if not self._tools and isinstance(event, MessageEvent) and _role_of(event.message).role in TOOL_ROLES:
            return
        self._held = event
        self._emptied = trio.Event()
        self._filled.set()

    async def room(self) -> None:
        while True:
            await self._emptied.wait()
            # While this was about to go on an event may have been written past the queue, which was empty.
            if self.ready():
                return

    async def run(self) -> None:
        """Write each event to the stream; until cancelled."""
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            event = self._held
            assert event is not None
            await self._send(event)
            self._held = None
            self._emptied.set()

    async def complete_params(self, _event: Event, params: dict[str, Any]) -> dict[str, Any]:
        """What is sent of an event, whose params these are."""
        return params

    async def _send(self, event: Event) -> None:
        agent = self.stream.caller.agent_id
        masks = self.services.patterns() if self.services.masks(self.stream.caller) else None
        _, params = await self.services.describe_event(event, agent, masks, self.stream.caller)
        data = msgspec.json.encode(await self.complete_params(event, params))
        match event:
            case MessageEvent(cursor=cursor):
                await self.stream.event(data, name="message", cursor=cursor)
            case ResyncEvent(cursor=cursor):
                await self.stream.event(data, name="resync", cursor=cursor)
            case _:
                # Live events are not in the file, so they have no cursor to resume from.
                await self.stream.event(data, name=_live_name(event))


def _live_name(event: Event) -> str:
    match event:
        case QuestionAsked():
            return "question.asked"
        case QuestionClosed():
            return "question.answered"
        case MachineChanged():
            return "machine.changed"
    names = {"session.delta": "delta", "session.thought": "thought", "session.tool": "tool"}
    return names.get(getattr(event, "method", ""), "changed")


def _text_so_far(services: Services, key: str) -> Iterator[LiveEvent]:
    """What the session's run has written since its last message."""
    run = services.supervisor.current(key)
    text = run.text_so_far.end() if run is not None and not run.ended else ""
    if run is not None and text:
        fields = {"runId": run.run_id, "text": text, "soFar": True}
        yield LiveEvent(key, "session.delta", fields, size=len(text))


async def _follow(
    services: Services,
    key: str,
    start: FollowPlace,
    stream: EventStream,
    *,
    page: SessionsHistoryResult | None = None,
    tools: bool,
    so_far: LiveSoFar | None = None,
    unsent: Sequence[Share] = (),
) -> None:
    """Send the history page, then each new message. Follows the key, so that it continues after a reset."""
    sink = SseSink(services, stream, tools=tools)
    following = Subscription(sink, limit=services.config.limits.max_queued_events, live_so_far=so_far)
    if page is not None:
        await stream.event(msgspec.json.encode(page), name="history", cursor=page.cursor)
    for share in unsent:
        share.release()
    services.bus.follow(following, key, EventFilter(services, stream.caller).sees)
    following.start_lag(key, start)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sink.run)
            nursery.start_soon(replay.pump, following, services.store)
    finally:
        services.bus.forget(following)


async def _kill(services: Services, request: HttpRequest) -> Answer:
    require_scope(request.caller, "admin")
    await services.loaded.wait()
    params = sessions_kill.SessionsKillParams(key=request.params["key"])
    done = await sessions_kill.handle(context_of(services, request), params)
    return json_response({"ok": True, "killed": done.killed})


async def _metrics(services: Services, request: HttpRequest) -> Answer:
    require_scope(request.caller, "admin")
    await trio.lowlevel.checkpoint()
    return HttpResponse(200, metrics.text(services).encode(), "text/plain; version=0.0.4; charset=utf-8")
