"""Run the daemon: configuration, lock, recovery, serving, signals, shutdown; map the reason of its end to an exit code.

Shutdown goes from the inside out, each step with a deadline. Source: architecture.md, "Who owns which task".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import structlog
import trio

import sessiond
from sessiond.auth.peercred import peer_credentials
from sessiond.client.starting import FILE_NAME as STARTING
from sessiond.config import settings as configuration
from sessiond.config.settings import Config
from sessiond.daemon import logs, memory, notify
from sessiond.daemon.app import App, key_rules, open_app
from sessiond.daemon.dumps import forbid_dumps
from sessiond.daemon.http_page import add_page_routes
from sessiond.daemon.http_questions import add_question_routes
from sessiond.daemon.http_sessions import add_session_routes
from sessiond.daemon.page_port import PagePort
from sessiond.daemon.stop_deadline import end_in_time
from sessiond.errors import ALLOW_THREADS, ConfigError, NoThread, StoreGone, StoreInUse, pluralize, reason_of
from sessiond.transports import listener as listening
from sessiond.transports.listener import Listener, SocketPaths
from sessiond.transports.serve import Server, ServerLimits

log = structlog.get_logger("sessiond")

EXIT_OK, EXIT_IN_USE, EXIT_NO_THREAD, EXIT_GONE, EXIT_CONFIG = 0, 69, 71, 74, 78
_EXPECTED = (ConfigError, StoreGone, StoreInUse, NoThread)
# How long requests in flight may take to finish during shutdown; after a second signal 0.
_DRAIN_S = 5.0
# A moment on any disk that answers, and requests in flight may wait for it.
_WITHDRAW_S = 1.0
# How often the progress of a long start is reported.
_PROGRESS_S = 1.0
_SWITCH_INTERVAL_S = 0.0005


def run(
    store: Path,
    config_path: Path | None = None,
    socket: Path | None = None,
    *,
    log_level: str = "info",
    json_log: bool = False,
) -> int:
    """Run the daemon until it is told to stop; the exit code (cli.md, "Exit codes")."""
    logs.configure(log_level, as_json=json_log)
    os.umask(0o077)
    memory.return_freed_memory()
    memory.collect_rarely()
    # A busy worker thread keeps the event loop waiting this long whenever the loop needs the interpreter. With the
    # default of 5 ms one answer, which needs it several times, was delayed by 20 ms.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    forbid_dumps()
    if socket is not None:
        os.environ["SESSIOND_SOCKET"] = str(socket)
    try:
        trio.run(_DaemonProcess(store, config_path).run)
    except BaseExceptionGroup as group:
        return _exit_code(group)
    except (*_EXPECTED, OSError) as error:
        return _exit_code(error)
    return EXIT_OK


def _exit_code(error: BaseException) -> int:
    """The exit code of an expected failure, after printing it. Any other exception is a bug and is raised again."""
    failures = _single_errors(error)
    if not all(isinstance(one, _EXPECTED) for one in failures):
        bug = failures[0] if len(failures) == 1 else error
        if isinstance(bug, OSError):  # or the command line would call it one of its own output
            raise RuntimeError("the daemon has ended because of an error that it does not expect") from bug
        raise bug
    # A store that is gone comes first: another part may have failed for the same reason, and called it unreadable.
    codes = {StoreGone: EXIT_GONE, StoreInUse: EXIT_IN_USE, NoThread: EXIT_NO_THREAD, ConfigError: EXIT_CONFIG}
    code, failure = next((code, one) for kind, code in codes.items() for one in failures if isinstance(one, kind))
    sentence = f"{reason_of(failure)}: {ALLOW_THREADS}" if isinstance(failure, NoThread) else str(failure)
    print(f"sessiond: {sentence}", file=sys.stderr)  # noqa: T201
    return code


def _single_errors(error: BaseException) -> list[BaseException]:
    """The errors in nested groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [single for inner in error.exceptions for single in _single_errors(inner)]


class _DaemonProcess:
    def __init__(self, store: Path, config_path: Path | None) -> None:
        self._store, self._config_path = store, config_path
        self._config = configuration.load(config_path)
        self._manager = notify.from_environment()
        self._reported_at = 0.0
        self._progress_path: Path | None = None
        self._stop = trio.Event()
        self._told_to_stop = False
        self._second_signal = trio.Event()

    async def run(self) -> None:
        config = self._config
        sockets = listening.socket_paths(os.environ, self._store)
        listening.check_length(sockets.sessiond)
        listening.check_length(sockets.agent)
        self._progress_path = sockets.sessiond.parent / STARTING
        listening.prepare_folder(self._progress_path.parent, private=sockets.private)
        try:
            await self._run(config, sockets)
        finally:
            self._remove_progress()

    async def _run(self, config: Config, sockets: SocketPaths) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            # Around the app, whose end may take long.
            async with trio.open_nursery() as watch:
                async with open_app(
                    self._store,
                    config,
                    sockets.agent.parent,
                    on_lock=lambda: self._write_progress(""),
                    progress=self._progress,
                    watching=_report_watch_backend,
                ) as app:
                    watch.start_soon(self._handle_signals, signals, app)
                    left = app.services.store.committer.count_unfinished
                    watch.start_soon(
                        end_in_time, self._stop, self._second_signal, left, os._exit, lambda: self._told_to_stop
                    )
                    await self._serve(app, config)
                watch.cancel_scope.cancel()
        self._manager.close()

    async def _serve(self, app: App, config: Config) -> None:
        # Bound while holding the store lock: only its holder may replace the sockets of an earlier daemon.
        listeners = listening.open_listeners(os.environ, self._store, config.http.listen)
        server = _server(app, config)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, listeners)
                self._serve_page(app, server, listeners)
                app.background.start_soon(self._announce, app, listeners)
                if (interval_s := notify.watchdog_seconds()) is not None:
                    app.background.start_soon(self._watchdog, interval_s)
                await self._stop.wait()
                self._manager.notify_stopping("finishing what is under way")
                log.info("stopping")
                app.loading.cancel()  # or runs would be recovered while the others are interrupted
                async with trio.open_nursery() as drain:
                    drain.start_soon(self._stop_on_second_signal, server)
                    withdrawn = trio.Event()
                    drain.start_soon(_withdraw_questions, app, withdrawn)
                    with trio.move_on_after(_WITHDRAW_S):
                        await withdrawn.wait()
                    await server.drain(_DRAIN_S, before_close=app.services.supervisor.interrupt_all)
                    drain.cancel_scope.cancel()
        finally:
            self._stop.set()  # from here on the end has a deadline, whatever its reason
            for listener in listeners:
                listener.close()

    def _serve_page(self, app: App, server: Server, listeners: tuple[Listener, ...]) -> None:
        folder = listening.socket_paths(os.environ, self._store).sessiond.parent
        port = PagePort(server, listeners, folder, app.services.clock.wall_ms)
        app.services.page.listener = port
        app.background.start_soon(port.run)

    async def _stop_on_second_signal(self, server: Server) -> None:
        await self._second_signal.wait()
        await server.drain(0)

    async def _announce(self, app: App, listeners: tuple[Listener, ...]) -> None:
        """Tell systemd, the log and waiting commands that the daemon is ready, once it has read the store."""
        await app.services.loaded.wait()
        memory.freeze_gc()
        sessions = len(app.services.store.catalog)
        self._remove_progress()
        self._manager.ready(pluralize(sessions, "session"))
        where = {
            one.name: str(one.path) if one.path is not None else ":".join(map(str, one.address)) for one in listeners
        }
        log.info("ready", version=sessiond.__version__, store=str(self._store), sessions=sessions, **where)

    def _write_progress(self, text: str) -> None:
        """Write the progress of the start to a file, for commands that run before the daemon is ready.

        Only with the store locked: a second daemon would say of the one at work that it is starting.
        """
        if self._progress_path is not None:
            written = self._progress_path.with_name(f".{STARTING}")
            with suppress(OSError):
                written.write_text(f"{os.getpid()}\n{text}")
                written.replace(self._progress_path)  # atomically

    def _remove_progress(self) -> None:
        """Remove the file of `_write_progress`, but not that of another daemon."""
        if self._progress_path is not None:
            with suppress(OSError):
                if self._progress_path.read_bytes().partition(b"\n")[0] == b"%d" % os.getpid():
                    self._progress_path.unlink()
            self._progress_path = None

    async def _handle_signals(self, signals: object, app: App) -> None:
        async for number in signals:  # type: ignore[attr-defined]
            if number == signal.SIGHUP:
                if not self._stop.is_set():
                    self._reload(app)
                continue
            self._told_to_stop = True
            if self._stop.is_set():
                self._second_signal.set()
            else:
                self._stop.set()

    def _reload(self, app: App) -> None:
        """Load the configuration file again. If it is bad, keep the old configuration and report the error."""
        # READY=1 ends a reload and a start, so nothing is told of a reload during the start.
        is_told = app.services.loaded.is_set() and self._manager.notify_reloading()
        try:
            config = configuration.load(self._config_path)
        except ConfigError as error:
            app.services.reload_problem = str(error)
            log.error("configuration not reloaded; the old one stays", reason=str(error))
        else:
            app.services.reload_problem = None
            machines = {peer.name for peer in config.link.peers} - {one.name for one in app.services.config.link.peers}
            removed = {agent.id for agent in app.services.config.agents.list} - {one.id for one in config.agents.list}
            app.services.config = config
            app.services.store.rules = key_rules(config)
            app.services.tokens.agents_became_machines(machines)
            app.services.attached.forget(removed)
            app.services.acp_agents.reconfigure(config.agents.list)
            app.services.supervisor.end_runs_of_removed_agents(removed)
            app.services.supervisor.agents_changed()
            app.services.notify_targets.reconfigure()
            app.services.outbox.make_due()
            app.services.sources.reconfigure()
            app.services.search_index.reconfigure()
            log.info("configuration reloaded")
        app.services.reloaded_ms = app.services.clock.wall_ms()
        if is_told:
            self._manager.ready(pluralize(len(app.services.store.catalog), "session"))

    async def _watchdog(self, interval_s: float) -> None:
        while True:
            self._manager.alive()
            await trio.sleep(interval_s)

    def _progress(self, done: int, total: int, agent_id: str) -> None:
        """Report how many transcripts were read. Called from the worker thread that scans the store at the start."""
        now = time.monotonic()
        if now - self._reported_at < _PROGRESS_S and done:
            return
        self._reported_at = now
        text = f"reading transcripts of agent {agent_id}: {done} of {total}"
        self._manager.extend_timeout(30, text)
        self._write_progress(text)
        log.info("reading transcripts", agent=agent_id, done=done, total=total)


async def _withdraw_questions(app: App, withdrawn: trio.Event) -> None:
    """Withdraw them: requests are refused from now on, so nobody can answer whoever asks."""
    await app.services.questions.stop()
    withdrawn.set()


def _server(app: App, config: Config) -> Server:
    services = app.services
    server = Server(
        app.dispatcher,
        app.active_connections,
        authenticate=services.tokens.caller,
        peer_uid=lambda connection: peer_credentials(connection).uid,
        with_room=services.store.committer.files.retry_with_room,
        rules=ServerLimits(
            max_connections=config.limits.max_connections,
            first_message_s=config.limits.first_message_seconds,
            allowed_origins=frozenset(config.http.allowed_origins),
        ),
    )
    add_session_routes(server.router, services)
    add_page_routes(server.router, services)
    add_question_routes(server.router, services)
    return server


def _report_watch_backend(backend: str) -> None:
    log.debug("watching the store", backend=backend)
