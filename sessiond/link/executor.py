"""Executes the commands of other machines on the daemon here, each once, and answers them.

A command is in the ledger before the server may forget it, and its answer before it is sent. The daemon knows it by the
command's id, as idempotency key, so that one whose run was accepted right before a crash is not accepted again.
Knows no server: `send` hands answers over.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog

from sessiond.client.errors import ClientError, RpcError
from sessiond.client.retry import Backoff
from sessiond.client.wire import INTERNAL, Event
from sessiond.config.link import PeerConfig
from sessiond.link.command_ledger import CommandLedger, LedgerEntry
from sessiond.link.command_wire import MAX_LINE_BYTES, BadBody, MachineAnswer, MachineCommand, decode_command, encode
from sessiond.link.failures import LinkError
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.paced_log import PacedLog
from sessiond.link.refusals import why_not_found, why_refused

log = structlog.get_logger("sessiond.link")

# How many commands of one machine are handed to the daemon at the same time.
AT_ONCE = 8
# How many refusals are on their way to one machine: what else it asks for then is not answered, and asked for again.
MAX_REFUSALS = 32
# How often the daemon may fail to accept a command before it is given up: for about an hour.
MAX_TRIES = 60
MAX_DELAY_S = 60.0
# An event may be missed where the daemon drops a queue; the runs that are waited for are looked at again this often.
LOOK_AGAIN_S = 30.0
# How often what was answered long ago is removed: a link may run for years.
FORGET_S = 86_400.0
# The errors after which the same command may succeed, by their slug.
_PASSING = frozenset({"internal", "overloaded", "stopping", "storage"})
# ... but for chains of messages, which do not get shorter.
_LASTING = frozenset({"too_many_hops"})


class PeerDoor(Protocol):
    """The daemon as a peer may use it."""

    async def call(self, peer: PeerConfig, method: str, params: dict[str, Any]) -> Any: ...


class Executor:
    """`name` is that of this machine, `configured` are its peers. `send(peer, id, body)` returns once the server has
    the answer, and raises LinkError while that cannot be reached. `mask(text)` is the text without secrets.
    """

    def __init__(
        self,
        ledger: LedgerThread,
        owner: OwnerDoor,
        peers: PeerDoor,
        *,
        name: str,
        configured: Mapping[str, PeerConfig],
        send: Callable[[str, str, bytes], Awaitable[object]],
        mask: Callable[[str], str],
        wall_ms: Callable[[], int],
    ) -> None:
        self._ledger, self._owner, self._peers = ledger, owner, peers
        self._name, self._configured = name, configured
        self._send, self._mask, self._wall_ms = send, mask, wall_ms
        self._tasks: asyncio.TaskGroup | None = None
        self._has_begun = asyncio.Event()
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._sending = asyncio.Semaphore(32)
        self._delivering: set[tuple[str, str]] = set()
        self._aborting: set[tuple[str, str]] = set()
        self._refusing: Counter[str] = Counter()
        self._paced = PacedLog(time.monotonic)
        # The runs that are waited for, by session in the order in which they were accepted: run id to command.
        self._runs: dict[str, dict[str, tuple[str, str]]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Resume what was left, and go on until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                unsent = await self._ledger.retry(CommandLedger.unsent_answers)
                left = await self._ledger.retry(CommandLedger.open_commands)
                self._tasks = tasks
                self._has_begun.set()
                for entry in unsent:
                    tasks.create_task(self._deliver(entry.peer, entry.id, entry.answer or b""))
                for entry in left:
                    if entry.state == "running" and entry.run_id is not None:
                        self._watch(entry)
                    else:
                        tasks.create_task(self._execute(entry))
                tasks.create_task(self._forget_old())
                try:
                    await self._watch_runs()
                finally:
                    self._tasks = None  # a group that ends takes no more
        finally:
            self._has_begun.clear()

    async def take(self, peer: str, command_id: str, part: int, parts: int, data: bytes) -> None:
        """Keep a part of a command; returns when the server may forget it. NoRoom or StorageError where it must not."""
        await self._has_begun.wait()  # or what it keeps here would count as left from before, too
        body: bytes | None = data
        if parts > 1:
            body = await self._ledger.do(CommandLedger.put_part, peer, command_id, part, parts, data)
        known = await self._ledger.do(CommandLedger.find, peer, command_id)
        if body is None and known is None:
            return  # the others are still to come
        if known is None and body is not None:
            await self._take_new(peer, command_id, body)
        elif known is not None and parts == 1 and _is_abort(data):
            await self._stop(peer, command_id)
        elif known is not None and known.answer is not None and part == 0:  # once for all parts of a command
            self._start(self._deliver(peer, command_id, known.answer))  # the answer was lost

    async def _take_new(self, peer: str, command_id: str, body: bytes) -> None:
        refusal = self._refusal_of(peer, body)
        if refusal is None and await self._ledger.do(CommandLedger.was_refused, peer, command_id):
            # Its sender was told so. Whoever has recorded it must not have it executed under another rule.
            refusal = f"{self._name} has refused it before, and does not carry it out later: send it again"
        if refusal is not None:
            # Only its id is kept, or a machine that may do nothing here could fill the disk. Where this is lost it asks
            # again.
            await self._ledger.do(CommandLedger.note_refused, peer, command_id)
            self._paced.write(log.warning, peer, "command refused", command=command_id, reason=refusal)
            if self._refusing[peer] < MAX_REFUSALS:
                self._refusing[peer] += 1
                self._start(self._send_once(peer, command_id, MachineAnswer(status="refused", error=refusal)))
            return
        if _is_abort(body):
            # It overtook its command, or that is lost: so that it is not executed later, it counts as answered.
            await self._ledger.do(CommandLedger.accept, peer, command_id, b"", self._wall_ms())
            await self._stop(peer, command_id)
            return
        if await self._ledger.do(CommandLedger.accept, peer, command_id, body, self._wall_ms()):
            self._start(self._execute(LedgerEntry(peer, command_id, "waiting", body)))

    def _refusal_of(self, peer: str, body: bytes) -> str | None:
        """Why nothing comes of a command, whatever the daemon says."""
        try:
            return why_refused(self._name, peer, self._configured.get(peer), decode_command(body))
        except BadBody as error:
            return f"the command cannot be read: {error}"

    async def _send_once(self, peer: str, command_id: str, answer: MachineAnswer) -> None:
        try:
            with suppress(LinkError):
                await self._send(peer, command_id, encode(answer))
        finally:
            self._refusing[peer] -= 1

    async def _stop(self, peer: str, command_id: str) -> None:
        """Let nothing more come of a command whose sender was stopped, who asks for it until there is an answer."""
        refusal = encode(MachineAnswer(status="refused", error="it was stopped before it began"))
        stopped = await self._ledger.do(CommandLedger.stop, peer, command_id, refusal)
        if stopped is not None and stopped.answer is not None:
            self._start(self._deliver(peer, command_id, stopped.answer))
        elif stopped is not None and (peer, command_id) not in self._aborting:
            self._start(self._abort(stopped))

    def note_event(self, event: Event) -> None:
        """Look at the runs of a session that has changed."""
        key = event.get("sessionKey")
        if event.name == "sessions.changed" and key in self._runs:
            self._due.add(key)
            self._wake.set()

    def look_at_all(self) -> None:
        """Look at all runs: the connection to the daemon is new."""
        self._due.update(self._runs)
        self._wake.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()  # the next `run` finds it in the ledger
        else:
            self._tasks.create_task(work)

    async def _execute(self, entry: LedgerEntry) -> None:
        try:
            command = decode_command(entry.body or b"")
        except BadBody as error:
            await self._answer(entry, MachineAnswer(status="refused", error=f"the command cannot be read: {error}"))
            return
        backoff = Backoff(0.5, MAX_DELAY_S)
        while True:
            peer = self._configured.get(entry.peer)
            refusal = why_refused(self._name, entry.peer, peer, command)
            if refusal is not None or peer is None:
                await self._answer(entry, MachineAnswer(status="refused", error=refusal))
                return
            try:
                async with self._slots.setdefault(entry.peer, asyncio.Semaphore(AT_ONCE)):
                    run_id, key = await self._begin(peer, entry.id, command)
                break
            except RpcError as error:
                delay_s = await self._delay_after(entry, error, backoff)
                if delay_s is None:
                    return
            except ClientError:
                await self._owner.current_link()
                delay_s = backoff.next_s()
            await asyncio.sleep(delay_s)
        running = LedgerEntry(entry.peer, entry.id, "running", run_id=run_id, session_key=key)
        if await self._ledger.retry(CommandLedger.begin, entry.peer, entry.id, run_id, key):
            self._watch(running)
        else:
            await self._abort(running)  # its sender stopped it meanwhile

    async def _delay_after(self, entry: LedgerEntry, error: RpcError, backoff: Backoff) -> float | None:
        """How long to wait after the daemon's error; None where the command was refused or given up."""
        if error.slug not in _PASSING or error.data.get("code") in _LASTING:
            await self._answer(entry, MachineAnswer(status="refused", error=error.message))
            return None
        tries = await self._ledger.retry(CommandLedger.note_try, entry.peer, entry.id, error.message)
        if tries >= MAX_TRIES:
            self._paced.write(
                log.error, entry.peer, "command given up", command=entry.id, tries=tries, reason=error.message
            )
            said = f"given up after {tries} attempts: {error.message}"
            await self._answer(entry, MachineAnswer(status="refused", error=said), is_dead=True)
            return None
        wanted_ms = error.data.get("retryAfterMs")
        least_s = min(wanted_ms / 1000, MAX_DELAY_S) if isinstance(wanted_ms, int) else 0.0
        return max(backoff.next_s(), least_s)

    async def _begin(self, peer: PeerConfig, command_id: str, command: MachineCommand) -> tuple[str, str]:
        """Let the daemon accept the command: the run, and the key of its session."""
        if len(msgspec.json.encode(command)) > MAX_LINE_BYTES:
            # The daemon would end the connection, which is no reason to give up.
            raise RpcError(INTERNAL, "invalid_params", "the message with its files is longer than sessiond takes")
        common: dict[str, Any] = {"idempotencyKey": command_id}
        if command.origin is not None:
            told = {"sessionKey": command.origin.session_key, "traceId": command.origin.trace_id}
            known = {name: value for name, value in told.items() if value is not None}
            common["_meta"] = {"machine": {**known, "hops": command.origin.hops}}
        if command.method == "spawn":
            made = await self._peers.call(peer, "sessions_spawn", {**_spawn_params(command), **common})
            return made["runId"], made["childSessionKey"]
        common |= {"message": command.message, "timeoutSeconds": 0}
        try:
            sent = await self._peers.call(peer, "sessions_send", {"sessionKey": command.target, **common})
        except RpcError as error:
            if error.slug != "not_found":
                raise
            try:
                sent = await self._peers.call(peer, "sessions_send", {"label": command.target, **common})
            except RpcError:
                words = why_not_found(self._name, peer.name, command.target, error)
                raise RpcError(error.code, error.slug, words, error.data) from None
        return sent["runId"], sent["sessionKey"]

    def _watch(self, entry: LedgerEntry) -> None:
        assert entry.run_id is not None
        key = entry.session_key or ""
        self._runs.setdefault(key, {})[entry.run_id] = (entry.peer, entry.id)
        self._due.add(key)
        self._wake.set()

    async def _forget_old(self) -> None:
        while True:
            await self._ledger.retry(CommandLedger.forget_old, self._wall_ms())
            await asyncio.sleep(FORGET_S)

    async def _watch_runs(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S if self._runs else None):
                    await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due or set(self._runs), set()
            for key in due:
                await self._look_at(key)

    async def _look_at(self, key: str) -> None:
        for run_id, (peer, command_id) in list(self._runs.get(key, {}).items()):
            answer = await self._end_of(run_id)
            if answer is None:
                return  # those behind it wait for it
            self._runs[key].pop(run_id)
            await self._answer(LedgerEntry(peer, command_id, "running"), answer)
        if not self._runs.get(key):
            self._runs.pop(key, None)

    async def _end_of(self, run_id: str) -> MachineAnswer | None:
        """The answer where the run has ended."""
        try:
            found = await self._owner.call("agent.wait", runId=run_id, timeoutMs=0)
        except RpcError as error:
            if error.slug in _PASSING:
                return None
            return MachineAnswer(status="error", error=f"its run is not known any more: {error.message}")
        except ClientError:
            return None  # a new connection looks at all of them
        status, key = found["status"], found.get("sessionKey")
        if status == "running":
            return None
        if status == "ok":
            return MachineAnswer(status="ok", reply=self._mask_text(found.get("reply")), session_key=key)
        why = self._mask_text(found.get("error")) or f"the run ended with status {status}"
        return MachineAnswer(status="error", error=why, session_key=key)

    def _mask_text(self, text: str | None) -> str | None:
        return self._mask(text) if text else text

    async def _answer(self, entry: LedgerEntry, answer: MachineAnswer, *, is_dead: bool = False) -> None:
        body = encode(answer)
        await self._ledger.retry(CommandLedger.answer, entry.peer, entry.id, body, is_dead=is_dead)
        if answer.status == "refused":
            self._paced.write(log.warning, entry.peer, "command refused", command=entry.id, reason=answer.error)
        self._start(self._deliver(entry.peer, entry.id, body))

    async def _deliver(self, peer: str, command_id: str, body: bytes) -> None:
        """Hand the answer to the server, however long that is away; once, however often the command comes meanwhile."""
        if (peer, command_id) in self._delivering:
            return
        self._delivering.add((peer, command_id))
        backoff = Backoff(0.2, 30.0)
        try:
            while peer in self._configured:
                try:
                    async with self._sending:
                        await self._send(peer, command_id, body)
                    break
                except LinkError:
                    await asyncio.sleep(backoff.next_s())
            await self._ledger.retry(CommandLedger.note_sent, peer, command_id, self._forgotten)
        finally:
            self._delivering.discard((peer, command_id))

    @property
    def _forgotten(self) -> bytes:
        """What stands for an answer that is forgotten now."""
        until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._wall_ms() / 1000))
        said = f"{self._name} kept the answer until {until}, and does not carry it out again; see the session there"
        return encode(MachineAnswer(status="error", error=said))

    async def _abort(self, entry: LedgerEntry) -> None:
        """Stop the run of a command whose sender was stopped. Where that fails the sender says it again."""
        self._aborting.add((entry.peer, entry.id))
        try:
            with suppress(ClientError):
                await self._owner.call("chat.abort", sessionKey=entry.session_key, runId=entry.run_id)
        finally:
            self._aborting.discard((entry.peer, entry.id))


def _is_abort(body: bytes) -> bool:
    try:
        return decode_command(body).method == "abort"
    except BadBody:
        return False


def _spawn_params(command: MachineCommand) -> dict[str, Any]:
    params: dict[str, Any] = {"task": command.message, "agentId": command.target}
    if command.within_s is not None:
        params["runTimeoutSeconds"] = command.within_s
    if command.files:
        params["attachments"] = [
            {
                "name": file.name,
                "content": base64.b64encode(file.data).decode(),
                "encoding": "base64",
                **({"mimeType": file.mime_type} if file.mime_type else {}),
            }
            for file in command.files
        ]
    return params
