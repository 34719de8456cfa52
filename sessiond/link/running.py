"""A link with one configuration: all its parts around one bus, one courier and one connection to the daemon.

Knows who is told what; decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import structlog

from sessiond.client.wire import DaemonRequest, Event
from sessiond.config.settings import Config
from sessiond.errors import StorageError
from sessiond.link.bus import Arrival, Bus, BusState, open_bus
from sessiond.link.cbor_wire import CborWire
from sessiond.link.command_inbox import CommandInbox, read_part
from sessiond.link.command_ledger import CommandLedger, LedgerEntry, State
from sessiond.link.command_wire import CommandFile, PartOf, split
from sessiond.link.commands import Commands
from sessiond.link.connecting import settings_of
from sessiond.link.copy_asker import Ask
from sessiond.link.copy_states import CopyStates
from sessiond.link.courier import Courier
from sessiond.link.daemon import DaemonClient, DaemonLink
from sessiond.link.envelope import Envelopes, PeerMessage, Refused
from sessiond.link.executor import Executor
from sessiond.link.failures import BusError
from sessiond.link.identity import load_identity, parse_all
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.peer_calls import PeerCalls
from sessiond.link.presence import Presence
from sessiond.link.ranges import COPY, ROWS
from sessiond.link.run_files import read_files
from sessiond.link.sent_places import SentPlaces
from sessiond.link.shares import SharesFile
from sessiond.link.status import LinkStatus, StatusFile
from sessiond.link.subjects import Kind
from sessiond.link.transcript_publisher import TranscriptPublisher
from sessiond.link.transcript_reader import TranscriptReader
from sessiond.policy.redact import compile_patterns
from sessiond.policy.secrets import mask_secrets
from sessiond.store import layout
from sessiond.store.workspace import default_workspace

log = structlog.get_logger("sessiond.link")

PING, BYE = "ping", "bye"
# How often the status is written at most.
_STATUS_S = 1.0
# How often it is put together at most where nothing of it is new.
_UNCHANGED_S = 0.1
# When it is written again where it, or a part of it, could not be had.
_STATUS_AGAIN_S = 15.0
# For how long a link that ends waits for others to hear of it.
_BYE_S = 0.5


def make_envelopes(store: Path, config: Config) -> Envelopes:
    """The envelopes of this machine. IdentityError where it has no identity, or the key of another is none."""
    peers = parse_all({peer.name: peer.key for peer in config.link.peers})
    assert config.link.name is not None
    return Envelopes(config.link.name, load_identity(store), peers, encrypt=config.link.encrypt)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class RunningLink:
    """`say_status(text)` tells the service manager in a line how things are. `leave` has to be called before `run` is
    cancelled. StorageError where its files cannot be opened now.
    """

    def __init__(self, store: Path, config: Config, socket: str | None, *, say_status: Callable[[str], object]) -> None:
        self._store, self._config, self._say_status = store, config, say_status
        self._peers = {peer.name: peer for peer in config.link.peers}
        self._envelopes = make_envelopes(store, config)
        self._settings = settings_of(config.link)
        self._bus_state = BusState()
        self._asked = 0
        self._unsent: dict[tuple[str, Kind], str] = {}
        # As the ledger said last, and why it cannot say it now.
        self._counts: dict[str, dict[State, int]] = {}
        self._dead: list[LedgerEntry] = []
        self._ledger_trouble: str | None = None
        self._status_due = asyncio.Event()
        self._is_built = False
        self._daemon = DaemonClient(
            socket,
            say=self._say_of_daemon,
            handlers={"run.start": self._start_run},
            on_event=self._take_event,
            on_connect=(self._greet_daemon,),
        )
        # What it says of a daemon that is away, the other one says too.
        self._byte_door = DaemonClient(socket, say=lambda _sentence: None, make_wire=CborWire)
        self._peer_calls = PeerCalls(socket, self._daemon.call)
        with ExitStack() as opened:  # where one cannot be opened, all are opened again later
            self._ledger = LedgerThread(CommandLedger(store / layout.LINK), self._status_due.set)
            opened.callback(self._ledger.close)
            self._copies = CopyStates(store)
            opened.callback(self._copies.close)
            self._places = SentPlaces(store)
            opened.pop_all()
        self._commands: Commands
        self._executor: Executor
        self._presence: Presence
        self._courier: Courier
        self._publisher: TranscriptPublisher
        self._reader: TranscriptReader

    async def leave(self) -> None:
        """The end is near: what is cancelled from now on goes on over there, and others are told."""
        if self._is_built:
            self._commands.is_leaving = True
            there = [peer for peer in self._peers if self._presence.is_there(peer)]
            await asyncio.gather(*(self._ask(peer, BYE, _BYE_S) for peer in there))

    async def run(self) -> None:
        """Link until cancelled."""
        try:
            async with open_bus(self._settings, self._note_bus) as bus, asyncio.TaskGroup() as tasks:
                self._build(bus)
                for part in (
                    self._daemon,
                    self._byte_door,
                    self._commands,
                    self._executor,
                    self._presence,
                    self._publisher,
                    self._reader,
                ):
                    tasks.create_task(part.run())
                tasks.create_task(self._keep_status())
        finally:
            self._ledger.close()
            self._copies.close()
            self._places.close()

    def _build(self, bus: Bus) -> None:
        self._presence = Presence(
            names=self._peers,
            ping=lambda peer, timeout_s: self._ask(peer, PING, timeout_s),
            report=self._daemon.call,
            back=self._welcome,
            changed=self._status_due.set,
        )
        self._courier = Courier(bus, self._envelopes, self._status_due.set)
        self._commands = Commands(
            self._ledger,
            self._daemon,
            names=self._peers,
            send=lambda peer, identity, body: self._send_parts(peer, "cmd", identity, body),
            is_there=self._presence.is_there,
            changed=self._status_due.set,
            read_files=self._read_files,
            wall_ms=wall_ms,
        )
        self._executor = Executor(
            self._ledger,
            self._daemon,
            self._peer_calls,
            name=self._envelopes.name,
            configured=self._peers,
            send=lambda peer, identity, body: self._send_parts(peer, "ans", identity, body),
            mask=self._mask,
            wall_ms=wall_ms,
        )
        self._publisher = TranscriptPublisher(
            self._daemon,
            self._courier,
            self._places,
            SharesFile(self._store),
            self._peers,
            # Each machine is an agent as well: what it has answered is no other's to have by a rule.
            agents={agent.id for agent in self._config.agents.list} - self._peers.keys(),
            byte_door=self._byte_door,
            drop=self._courier.drop,
            wall_ms=wall_ms,
        )
        self._reader = TranscriptReader(
            self._store,
            self._copies,
            self._peers,
            courier=self._courier,
            asks=self._asks,
            changed=self._status_due.set,
            wall_ms=wall_ms,
        )
        self._courier.answer(PING, self._answer_ping)
        self._courier.answer(BYE, self._answer_bye)
        self._courier.answer(COPY, self._publisher.answer_copy)
        self._courier.answer(ROWS, self._publisher.answer_rows)
        self._courier.consume("cmd", CommandInbox(self._executor, self._courier.drop, wall_ms).take)
        self._courier.consume("ans", self._take_answer)
        self._is_built = True

    # The daemon.

    async def _greet_daemon(self, link: DaemonLink) -> None:
        # Nothing of what comes from other machines: each line of a copy would come back from the daemon.
        await link.call("sessions.subscribe", {"sources": ["sessiond"], "messages": False})
        await self._presence.tell_all(link)
        await self._commands.attach(link)
        self._executor.look_at_all()
        # When this hook is over, the daemon counts as connected.
        asyncio.get_running_loop().call_soon(self._status_due.set)
        self._publisher.greet()

    def _say_of_daemon(self, sentence: str) -> None:
        log.warning(sentence)
        self._status_due.set()

    async def _start_run(self, link: DaemonLink, request: DaemonRequest) -> object:
        return await self._commands.start(link, request)

    def _take_event(self, event: Event) -> None:
        self._executor.note_event(event)
        self._publisher.note_event(event)

    def _read_files(self, peer: str, receipt: dict[str, Any]) -> tuple[CommandFile, ...]:
        agent = self._config.agent(peer)
        folder = agent.workspace if agent is not None else None
        return read_files(folder or default_workspace(self._store, peer), receipt)

    def _mask(self, text: str) -> str:
        """A reply as any token may read it."""
        tools = self._config.tools.sessions
        return mask_secrets(text, compile_patterns(tools.redact_patterns))[0] if tools.redact else text

    # Other machines.

    async def _send_parts(self, peer: str, kind: Kind, identity: str, body: bytes) -> None:
        parts = split(body)
        try:
            for number, part in enumerate(parts):
                await self._courier.send(peer, kind, identity, PartOf(number, len(parts), wall_ms()), part)
        except BusError as error:
            if self._unsent.get((peer, kind)) != error.message:
                self._unsent[peer, kind] = error.message
                log.warning("messages wait to be sent", kind=kind, machine=peer, reason=error.message)
            raise
        self._unsent.pop((peer, kind), None)

    async def _take_answer(self, message: PeerMessage, arrival: Arrival) -> None:
        fields = read_part(message)
        if isinstance(fields, Refused):
            self._courier.drop(fields)
        else:
            self._commands.take(message.sender, message.id, fields.part, fields.parts, message.payload)
        # The daemon writes the end of the run; if that is lost, the command goes there again and is answered again.
        await arrival.ack()

    async def _ask(self, peer: str, question: str, timeout_s: float) -> bool:
        """Whether the peer has replied."""
        try:
            await self._courier.ask(peer, self._number(question), timeout_s=timeout_s)
        except BusError:
            return False
        return True

    async def _answer_ping(self, message: PeerMessage) -> tuple[object, bytes]:
        self._presence.note_sign(message.sender)
        return {}, b""

    async def _answer_bye(self, message: PeerMessage) -> tuple[object, bytes]:
        self._presence.note_leave(message.sender)
        return {}, b""

    def _asks(self, peer: str) -> Ask:
        async def ask(question: str, fields: object) -> PeerMessage:
            return await self._courier.ask(peer, self._number(question), fields)

        return ask

    def _number(self, question: str) -> str:
        """The question with a number of its own, so that an old reply does not pass for a new one."""
        self._asked += 1
        return f"{question}:{wall_ms()}:{self._asked}"

    def _welcome(self, peer: str) -> None:
        self._reader.note_presence(peer)
        self._publisher.retry_now()
        self._commands.note_presence(peer)

    def _note_bus(self, state: BusState) -> None:
        before = self._bus_state
        if state.connected:
            self._publisher.retry_now()
        if state.is_back_after(before):
            log.info("the server is there", server=self._settings.address, version=state.server_version)
        if state.trouble and state.trouble != before.trouble:
            log.warning(state.trouble)
        self._bus_state = state
        self._status_due.set()
        self._presence.look_now()

    # How things are.

    async def _keep_status(self) -> None:
        file = StatusFile(self._store)
        while True:
            status = await self._status()
            is_new = await asyncio.get_running_loop().run_in_executor(None, file.write, status)
            if is_new:
                self._say_status(status.in_a_line)
            # A thousand commands are a few lines, and a thousand parts are counted now and then.
            await asyncio.sleep(_STATUS_S if is_new else _UNCHANGED_S)
            with suppress(TimeoutError):
                is_whole = file.is_written and not self._ledger_trouble
                async with asyncio.timeout(None if is_whole else _STATUS_AGAIN_S):
                    await self._status_due.wait()
            self._status_due.clear()

    async def _status(self) -> LinkStatus:
        try:
            self._counts = await self._ledger.do(CommandLedger.counts)
            self._dead = await self._ledger.do(CommandLedger.dead_letters, 20)
            self._ledger_trouble = None
        except StorageError as error:  # which is shown with all else that is known
            self._ledger_trouble = error.message
        return LinkStatus(
            name=self._envelopes.name,
            server=self._settings.address,
            server_version=self._bus_state.server_version,
            is_connected=self._bus_state.connected,
            trouble=self._bus_state.trouble or self._ledger_trouble,
            daemon=self._daemon.is_connected,
            machines={name: self._presence.is_there(name) for name in self._peers},
            waiting_there=len(self._commands),
            commands={
                peer: {str(state): count for state, count in found.items()} for peer, found in self._counts.items()
            },
            dead_letters=[f"{one.peer} {one.id}: {one.reason}" for one in self._dead],
            dropped=dict(self._courier.dropped),
            limits=self._reader.limits,
        )
