"""Runs here whose agent is another machine: each is a command to it, and ends with its answer.

The run, which the daemon keeps on disk, is the outbox. It comes with `run.start` whenever the link attaches, with the
same id, and its command is sent again until the answer is there; the other machine executes an id once. Knows no
server: `send` hands commands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from sessiond.client.errors import ClientError, RpcError
from sessiond.client.retry import Backoff
from sessiond.client.wire import INTERNAL, DaemonRequest
from sessiond.errors import quote
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.command_wire import (
    MAX_BODY_BYTES,
    MAX_KEY_CHARS,
    MAX_LINE_BYTES,
    BadBody,
    CommandFile,
    CommandOrigin,
    MachineAnswer,
    MachineCommand,
    decode_answer,
    encode,
)
from sessiond.link.failures import LinkError
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.run_files import FilesGone
from sessiond.policy.replyback import ANNOUNCE_SKIP, REPLY_SKIP

log = structlog.get_logger("sessiond.link")

# When a command is sent again without an answer, to a machine that is there: the server may have lost it.
FIRST_AGAIN_S = 5.0
MAX_AGAIN_S = 600.0
# How long the end of a run that was cancelled may take to be on record.
_END_S = 20.0
_SUBAGENT = "subagent:"


class AskingConnection(Protocol):
    """The connection on which the daemon asks."""

    @property
    def lost(self) -> Exception | None: ...


class _OpenCommand:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.answer: asyncio.Future[MachineAnswer] = asyncio.get_running_loop().create_future()
        self.parts: dict[int, bytes] = {}
        self.poked = asyncio.Event()


class Commands:
    """`names` are the machines in the configuration. `send(peer, id, body)` returns once the server has the command,
    and raises LinkError while that cannot be reached. `is_there(peer)`: whether the machine is awake.
    `read_files(peer, receipt)` are the files of a run. `changed()` is called when one more waits, or one less.
    """

    def __init__(
        self,
        ledger: LedgerThread,
        daemon: OwnerDoor,
        *,
        names: Iterable[str],
        send: Callable[[str, str, bytes], Awaitable[object]],
        is_there: Callable[[str], bool],
        read_files: Callable[[str, dict[str, Any]], tuple[CommandFile, ...]],
        changed: Callable[[], object],
        wall_ms: Callable[[], int],
        first_again_s: float = FIRST_AGAIN_S,
    ) -> None:
        self._ledger, self._daemon, self._names = ledger, daemon, tuple(names)
        self._send, self._is_there, self._read_files, self._wall_ms = send, is_there, read_files, wall_ms
        self._changed, self._first_again_s = changed, first_again_s
        self._open: dict[str, _OpenCommand] = {}
        self._sending = asyncio.Semaphore(32)
        self._stopping: set[asyncio.Task[None]] = set()
        self.is_leaving = False

    def __len__(self) -> int:
        """How many commands wait for their answer."""
        return len(self._open)

    async def attach(self, link: Any) -> None:
        """Take the runs of every other machine on this connection to the daemon."""
        for name in self._names:
            await link.call("agents.attach", agentId=name)

    async def start(self, connection: AskingConnection, request: DaemonRequest) -> dict[str, Any]:
        """Answer `run.start`: with the reply of the other machine, whenever that comes."""
        params = request.params
        key: str = params["sessionKey"]
        peer, _, rest = key.removeprefix("agent:").partition(":")
        step, target = params.get("step", "primary"), _target_of(params, peer)
        if target is None:
            return _without_going_there(step, peer, key)
        if step == "announce":
            return {"reply": ANNOUNCE_SKIP}  # the daemon asks for none, and a model there is not to be paid for it
        command = await self._command(params, peer, rest, target)
        answer = await self._ask(connection, peer, params["runId"], command)
        if command.method == "spawn" and answer.session_key is not None:
            await self._ledger.retry(CommandLedger.note_child, peer, key, answer.session_key)
        if answer.status == "ok":
            return {"reply": answer.reply} if answer.reply else {}
        raise RpcError(INTERNAL, "internal", f"{peer}: {answer.error or 'the run there failed'}")

    async def _command(self, params: dict[str, Any], peer: str, rest: str, target: str) -> MachineCommand:
        message: str = params["message"]
        if params.get("step") == "reply":
            # The other agent has to know what is expected of it; what this says is no secret from it.
            message = "\n\n".join(filter(None, (params.get("context"), message)))
        receipt = params.get("attachments")
        origin = _origin_in(params.get("provenance"))
        if not rest.startswith(_SUBAGENT):
            if receipt:
                raise _refusal("files go to another machine with sessions_spawn; a message there has none")
            return MachineCommand(method="send", target=target, message=message, origin=origin)
        child = await self._ledger.retry(CommandLedger.child, peer, params["sessionKey"])
        if child is not None:  # a later message to the sub-agent
            return MachineCommand(method="send", target=child, message=message, origin=origin)
        files: tuple[CommandFile, ...] = ()
        if receipt:
            try:
                files = await asyncio.get_running_loop().run_in_executor(None, self._read_files, peer, receipt)
            except FilesGone as error:
                raise _refusal(str(error)) from None
        within_s = None
        if (deadline := params.get("deadline")) is not None:
            within_s = max(1.0, (deadline - self._wall_ms()) / 1000)
        return MachineCommand(
            method="spawn", target=target, message=message, origin=origin, files=files, within_s=within_s
        )

    async def _ask(
        self, connection: AskingConnection, peer: str, run_id: str, command: MachineCommand
    ) -> MachineAnswer:
        body = encode(command)
        if len(body) > MAX_BODY_BYTES:
            raise _refusal(
                f"the message with its files has {len(body)} bytes, and {MAX_BODY_BYTES} go to another machine at once"
            )
        waiting = self._open[run_id] = _OpenCommand(peer)
        self._changed()
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._keep_sending(run_id, waiting, body))
                answer = await waiting.answer
                sending.cancel()
            return answer
        except asyncio.CancelledError:
            if connection.lost is None and not self.is_leaving:
                task = asyncio.create_task(self._stop_there(peer, run_id))
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)
            raise
        finally:
            if self._open.get(run_id) is waiting:
                del self._open[run_id]
                self._changed()

    async def _keep_sending(self, run_id: str, waiting: _OpenCommand, body: bytes) -> None:
        offline, again = Backoff(0.2, 30.0), Backoff(self._first_again_s, MAX_AGAIN_S)
        while True:
            try:
                async with self._sending:
                    await self._send(waiting.peer, run_id, body)
            except LinkError:
                await asyncio.sleep(offline.next_s())
                continue
            offline.reset()
            # A machine that is asleep finds it when it wakes; further copies would only fill the server.
            while True:
                waiting.poked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(again.next_s()):
                        await waiting.poked.wait()
                    again.reset()
                    continue
                if self._is_there(waiting.peer):
                    break

    def note_presence(self, peer: str) -> None:
        """The machine is back: what it has not answered soon is sent again."""
        for waiting in self._open.values():
            if waiting.peer == peer:
                waiting.poked.set()

    def take(self, peer: str, run_id: str, part: int, parts: int, data: bytes) -> None:
        """A part of an answer. One that nobody waits for is ignored: the run was stopped, or has its answer."""
        waiting = self._open.get(run_id)
        if waiting is None or waiting.peer != peer or waiting.answer.done():
            return
        if parts > 1:
            waiting.parts = {number: held for number, held in waiting.parts.items() if number < parts}
            waiting.parts[part] = data
            if len(waiting.parts) < parts:
                return
            data = b"".join(waiting.parts[number] for number in range(parts))
        try:
            answer = decode_answer(data)
        except BadBody as error:
            answer = MachineAnswer(status="error", error=f"its answer cannot be read: {error}")
        waiting.answer.set_result(_bound_answer(answer))

    async def _stop_there(self, peer: str, run_id: str) -> None:
        """Stop the command's run, unless the daemon has only cancelled its request and goes on with the run."""
        with suppress(ClientError, LinkError):
            found = await self._daemon.call(
                "agent.wait", runId=run_id, timeoutMs=int(_END_S * 1000), timeout_s=_END_S * 2
            )
            if found["status"] != "running":
                log.info("stopping a run there", peer=peer, command=run_id)
                await self._send(peer, run_id, encode(MachineCommand(method="abort")))


def _bound_answer(answer: MachineAnswer) -> MachineAnswer:
    """The answer as the daemon takes it: with a longer line it would end the connection, and ask again on the next."""
    if answer.session_key is not None and len(answer.session_key) > MAX_KEY_CHARS:
        answer = replace(answer, session_key=None)
    for said in (answer.reply, answer.error):
        if said is not None and len(msgspec.json.encode(said)) > MAX_LINE_BYTES:
            return replace(answer, status="error", reply=None, error="its answer is longer than sessiond takes")
    return answer


def _target_of(params: dict[str, Any], peer: str) -> str | None:
    """What the run is for on the peer, None where it is for nothing there."""
    target = params.get("target")
    return target.removeprefix(f"{peer}/") if isinstance(target, str) else None


def _origin_in(provenance: dict[str, Any] | None) -> CommandOrigin | None:
    """Who asks, as the provenance of the run's message has it; None for a person."""
    if not provenance:
        return None
    hops = provenance.get("hops")
    return CommandOrigin(
        provenance.get("sourceSessionKey"), provenance.get("traceId"), hops if isinstance(hops, int) else 0
    )


def _without_going_there(step: str, peer: str, key: str) -> dict[str, Any]:
    """The end of a run in the session as which the other machine acts here.

    It asked from here, and is answered by its command's end; what a conversation adds must not travel back.
    """
    if step == "primary" and not key.startswith(f"agent:{peer}:"):
        raise _refusal(f"{quote(key)} is no session of {peer}")
    return {"reply": {"reply": REPLY_SKIP, "announce": ANNOUNCE_SKIP}[step]} if step != "primary" else {}


def _refusal(sentence: str) -> RpcError:
    return RpcError(INTERNAL, "invalid_params", sentence)
