"""Runs here whose agent is another machine: each is a command to it, and ends with its answer.

The run, which the daemon keeps on disk, is the outbox. It comes with `run.start` whenever the link attaches, with the
same id, and its command is sent again until the answer is there; the other machine executes an id once. Where it ends
before, that machine is told to stop. Knows no server: `send` hands commands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from sessiond.client.errors import RpcError
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
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.repeated_sending import RepeatedSending
from sessiond.link.run_files import FilesGone
from sessiond.link.stopped_commands import StoppedCommands
from sessiond.policy.replyback import ANNOUNCE_SKIP, REPLY_SKIP

log = structlog.get_logger("sessiond.link")

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
    ) -> None:
        self._ledger, self._daemon, self._names = ledger, daemon, tuple(names)
        self._read_files, self._changed, self._wall_ms = read_files, changed, wall_ms
        self._open: dict[str, _OpenCommand] = {}
        self._sending = RepeatedSending(send, is_there)
        self._stopped = StoppedCommands(
            ledger, daemon, self._sending, names=self._names, is_open=self._open.__contains__
        )
        self.is_leaving = False

    def __len__(self) -> int:
        """How many commands wait for their answer."""
        return len(self._open)

    async def run(self) -> None:
        """Tell other machines of what was stopped here, until cancelled."""
        await self._stopped.run()

    async def attach(self, link: Any) -> None:
        """Take the runs of every other machine on this connection to the daemon."""
        for name in self._names:
            await link.call("agents.attach", agentId=name)
        self._stopped.look()

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
        is_over = False
        waiting = self._open[run_id] = _OpenCommand(peer)
        self._changed()
        try:
            await self._ledger.retry(CommandLedger.note_asked, peer, run_id, self._wall_ms())
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._sending.repeat(peer, run_id, body))
                answer = await waiting.answer
                sending.cancel()
            # Before the daemon has it: where that is lost, the run comes again, and is asked for again.
            await self._ledger.retry(CommandLedger.note_answered, peer, run_id)
            return answer
        except asyncio.CancelledError:
            is_over = connection.lost is None and not self.is_leaving
            raise
        finally:
            if self._open.get(run_id) is waiting:
                del self._open[run_id]
                self._changed()
                if is_over:
                    self._stopped.note_cancelled(peer, run_id)

    def note_presence(self, peer: str) -> None:
        """The machine is back."""
        self._sending.note_presence(peer)

    def take(self, peer: str, run_id: str, part: int, parts: int, data: bytes) -> None:
        """A part of an answer. One for which no run waits says that nothing goes on there: it was stopped."""
        waiting = self._open.get(run_id)
        if waiting is None:
            self._stopped.note_answer(peer, run_id)
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
