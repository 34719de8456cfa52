"""The HTTP routes of the owner's page: its files, its token and its end, and the changes of all sessions.

The files are those of `sessiond/web`, served as they lie there. Knows no sockets.
Source: security.md, "The page"; protocol.md, "HTTP".
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sessiond.daemon.http_sessions import SseSink, require_json, require_scope
from sessiond.errors import Forbidden, InvalidParams, NotFound, NoThread, StorageError, no_memory
from sessiond.events import replay
from sessiond.events.subscription import Subscription
from sessiond.methods.following import EventFilter
from sessiond.methods.gateway_sessions_list import add_previews
from sessiond.methods.services import Services
from sessiond.model.event import Event
from sessiond.tasks import run_in_thread
from sessiond.transports.exchange import (
    Answer,
    EventStreamAnswer,
    HttpRequest,
    HttpResponse,
    json_response,
)
from sessiond.transports.routes import Router, describe_routes
from sessiond.transports.sse import EventStream

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_INDEX = "index.html"
# `<script type="module" src="a.js">`
_SCRIPT = re.compile(r"""<script\b[^>]*\bsrc=["']([\w.-]+)["']""")
# `import {a} from "./b.js"`, over several lines too; not `import("./b.js")`.
_IMPORT = re.compile(r"""^(?:import|export)\b[^"'(;]*["']\./([\w.-]+)["']""", re.MULTILINE)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
}
_MAX_TRADE_BYTES = 4096
# Transcripts are an attacker's text: whatever of them became markup in spite of the page's care can load, send and run
# nothing. Also of a single file that is opened for itself.
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _CSP),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def add_page_routes(router: Router, services: Services) -> None:
    """`GET /` and the files of the page, `POST /page/token`, `POST /page/close`, `GET /events`."""
    web = PageFiles()
    router.add("GET", "/", web.serve_index, free=True)
    # Only names that are there have a route, so that no path leads out of the folder.
    for name in web.names:
        router.add("GET", f"/{name}", partial(web.serve, name), free=True)
    router.add("POST", "/page/token", partial(_trade, services), free=True, max_body_bytes=_MAX_TRADE_BYTES)
    router.add("POST", "/page/close", partial(_close, services), max_body_bytes=_MAX_TRADE_BYTES)
    router.add("GET", "/events", partial(_events, services))


def _own_folder() -> Traversable:
    """The folder of the page: beside this package, or in the zip file that has it."""
    beside = Path(__file__).parents[1] / "web"
    if beside.is_dir():
        return beside
    from importlib.resources import files  # 10 ms and a megabyte

    return files("sessiond") / "web"


class PageFiles:
    """The files of the page. A browser asks for all of them at once: what has not changed is read once."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder = folder or _own_folder()
        found = [entry.name for entry in folder.iterdir() if entry.is_file()] if folder.is_dir() else []
        self.names = sorted(name for name in found if _type_of(name) is not None)
        # By name: when it was changed last, and its bytes.
        self._read: dict[str, tuple[int, bytes]] = {}
        # Else a browser learns of each module when it has read those that import it.
        modules = ", ".join(f"<{name}>; rel=modulepreload" for name in self._modules_at_once())
        self._index_headers = (*_HEADERS, ("Vary", "Accept"), ("Link", modules))

    def _modules_at_once(self) -> list[str]:
        """The modules of the page and what they import, each with its own before the next; not what is loaded later."""
        met: list[str] = []
        ahead = self._find_names(_INDEX, _SCRIPT)[::-1]
        while ahead:
            name = ahead.pop()
            if name not in met:
                met.append(name)
                ahead += self._find_names(name, _IMPORT)[::-1]
        return met

    def _find_names(self, name: str, pattern: re.Pattern[str]) -> list[str]:
        """The files that a file names so."""
        found = pattern.findall((self._folder / name).read_text("utf-8")) if name in self.names else []
        return [other for other in found if other in self.names]

    async def serve_index(self, request: HttpRequest) -> Answer:
        """The page for a browser; for a person with curl the list of routes."""
        if _INDEX not in self.names or "text/html" not in request.headers.get("accept", ""):
            return await describe_routes(request)
        return HttpResponse(200, await self._bytes_of(_INDEX), _TYPES[".html"], self._index_headers)

    async def serve(self, name: str, _request: HttpRequest) -> Answer:
        """One file."""
        return HttpResponse(200, await self._bytes_of(name), _type_of(name) or "", _HEADERS)

    async def _bytes_of(self, name: str) -> bytes:
        file = self._folder / name
        try:
            # In an archive nothing changes.
            changed = file.stat().st_mtime_ns if isinstance(file, Path) else 0
            known = self._read.get(name)
            if known is None or known[0] != changed:
                known = self._read[name] = changed, await run_in_thread(file.read_bytes)
        except FileNotFoundError:
            raise NotFound("There is nothing at this path.") from None
        except NoThread as error:
            raise no_memory(error) from None
        except OSError:
            raise StorageError("A file of the page cannot be read; is sessiond being installed anew?") from None
        await trio.lowlevel.checkpoint()
        return known[1]


def _type_of(name: str) -> str | None:
    return _TYPES.get(name[name.rfind(".") :])


class _Trade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str


async def _trade(services: Services, request: HttpRequest) -> Answer:
    """A token for a one-time code. Source: security.md, "The page"."""
    require_json(request)
    try:
        code = msgspec.json.decode(request.body, type=_Trade).code
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParams('The body is {"code": "..."}.', field="code") from None
    text, claims = await services.page.trade(code)
    return json_response({"token": text, "id": claims.id, "scopes": claims.scopes, "expiresAt": claims.expires_at_ms})


async def _close(services: Services, request: HttpRequest) -> Answer:
    """Revoke the token with which it is asked, if it is a page's."""
    if not request.caller.is_page:
        raise Forbidden("Only a page can be closed so; a token is revoked by `tokens.revoke`.")
    require_json(request)
    await services.tokens.revoke(token_id=request.caller.token_id, text=None)
    return json_response({"ok": True})


async def _events(services: Services, request: HttpRequest) -> Answer:
    """`sessions.changed` of every session that the caller may see, as they come; first `ready`."""
    require_scope(request.caller, "list")
    await services.loaded.wait()
    return EventStreamAnswer(partial(_follow_changes, services))


class _RowSink(SseSink):
    """Rows of changes have what those of `sessions.list` have, but while a run works or waits: it may change often."""

    async def complete_params(self, event: Event, params: dict[str, Any]) -> dict[str, Any]:
        row, session = params.get("row"), self.services.store.catalog.by_key.get(event.key)
        caller = self.stream.caller
        if row is None or session is None or session.session_id != row.session_id:
            return params
        if row.state in ("running", "waiting") or not caller.has("read"):
            return params
        (shown,) = await add_previews(self.services, caller, [row], [session])
        return {**params, "row": shown}


async def _follow_changes(services: Services, stream: EventStream) -> None:
    sees = EventFilter(services, stream.caller).sees

    def sees_rows(key: str, spawned_by: str | None, transcript: bool) -> bool:
        return not transcript and sees(key, spawned_by, False)

    sink = _RowSink(services, stream, tools=False)
    following = Subscription(sink, limit=services.config.limits.max_queued_events)
    services.bus.follow(following, None, sees_rows)
    try:
        # From here on no change is missed, so a list that is asked for now is complete with what follows.
        await stream.event(b"{}", name="ready")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sink.run)
            nursery.start_soon(replay.pump, following, services.store)
    finally:
        services.bus.forget(following)
