"""Channels: the adapters (connections) and commands that deliver texts to people.

Makes one attempt at a delivery. Retries are the outbox's. Source: runs.md, "Channels and delivery".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from sessiond.config.settings import ChannelConfig
from sessiond.delivery.channel_command import CommandFailure, command_for, run_command
from sessiond.delivery.notification import Notification
from sessiond.errors import Unsupported
from sessiond.model.keys import AnyKey
from sessiond.model.lax import Count, Milliseconds
from sessiond.policy.target import IN_TRANSCRIPT, Target
from sessiond.runtimes.attached import AgentConnectionLost, RefusedByAgent

# How long an adapter or a command may take for one delivery before the attempt counts as failed.
ANSWER_S = 30.0
# How many commands run at the same time, so that an outbox full of old deliveries does not start hundreds.
MAX_COMMANDS = 4


class Delivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One text to deliver. `title` is for channels that show one. Times are milliseconds since 1970.

    `failed_at` is set on a dead letter, which is not tried again. A `notification` goes to the target of its rule.
    """

    delivery_id: str
    channel: str
    to: str
    session_key: AnyKey
    text: str
    title: str
    created_at: Milliseconds
    account_id: str | None = None
    thread_id: str | None = None
    attempts: Count = 0
    last_error: str | None = None
    failed_at: Milliseconds | None = None
    notification: Notification | None = None


class NotDelivered(Exception):
    """This attempt failed; the message is a sentence for a person."""


class Adapter(Protocol):
    """An attachment of a connection to a channel. Several attachments may have the same `connection`."""

    account_id: str | None
    threads: bool

    @property
    def connection(self) -> object: ...

    def serves(self, session_key: str) -> bool:
        """Whether the adapter's caller may see the session, and so receive its texts."""

    async def ask(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        """The answer. AgentConnectionLost or RefusedByAgent if none comes in time."""


class Channels:
    """The adapters and commands of all channels. `on_attach(channel)` is called when an adapter attaches.

    `commands()` are the configured channels. `environ` is the daemon's own environment; commands get little of it.
    """

    def __init__(
        self,
        commands: Callable[[], Mapping[str, ChannelConfig]],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        on_attach: Callable[[str], None],
    ) -> None:
        self._commands, self._environ, self._cwd, self._on_attach = commands, environ, cwd, on_attach
        self._adapters: dict[str, list[Adapter]] = {}
        self._at_work = trio.CapacityLimiter(MAX_COMMANDS)

    def attach(self, channel: str, adapter: Adapter) -> None:
        """Let the adapter deliver for the channel; it replaces one of the same connection and account."""
        before = self._adapters.get(channel, [])
        same = (adapter.connection, adapter.account_id)
        self._adapters[channel] = [*(one for one in before if (one.connection, one.account_id) != same), adapter]
        self._on_attach(channel)

    def renew(self, connection: object) -> None:
        """The connection has another caller: what it may deliver now is asked of it again."""
        for channel, held in self._adapters.items():
            if any(one.connection is connection for one in held):
                self._on_attach(channel)

    def detach(self, connection: object) -> None:
        """Remove all adapters of a connection that has closed."""
        for channel, held in list(self._adapters.items()):
            self._adapters[channel] = [one for one in held if one.connection is not connection]
            if not self._adapters[channel]:
                del self._adapters[channel]

    def in_transcript(self, channel: str) -> bool:
        """Whether people read this channel's sessions in the transcript: it needs no adapter and has none."""
        return channel in IN_TRANSCRIPT and channel not in self._adapters and channel not in self._commands()

    def threads(self, target: Target | None) -> bool:
        """Whether an attached adapter can create threads for this target."""
        return target is not None and self._with_threads(target, None) is not None

    async def bind_thread(self, target: Target | None, session_key: str, label: str | None) -> str:
        """The id of a new thread that is bound to the session. Unsupported if no adapter creates one."""
        adapter = self._with_threads(target, session_key) if target is not None else None
        if adapter is None or target is None:
            raise Unsupported("no attached channel with threads serves this session", code="thread_unsupported")
        params: dict[str, Any] = {"sessionKey": session_key, "label": label, "to": target.to}
        try:
            answer = await adapter.ask("channel.bindThread", _present(params), timeout_s=ANSWER_S)
        except (AgentConnectionLost, RefusedByAgent) as error:
            reason = str(error) or "the connection was lost"
            raise Unsupported(
                f"the adapter of {target.channel} made no thread: {reason}", code="thread_unsupported"
            ) from None
        thread = answer.get("threadId") if isinstance(answer, dict) else None
        if isinstance(thread, bool) or not isinstance(thread, (str, int)) or thread == "":
            raise Unsupported(f"the adapter of {target.channel} named no thread", code="thread_unsupported")
        return str(thread)

    async def deliver(self, delivery: Delivery) -> None:
        """Make one attempt; returns when it is acknowledged. NotDelivered if it is not."""
        adapter = self._adapter(delivery.channel, delivery.account_id, delivery.session_key)
        if adapter is not None:
            await self._deliver_through(adapter, delivery)
        elif (configured := self._commands().get(delivery.channel)) is not None:
            async with self._at_work:
                await self._by_command(configured, delivery)
        elif (missing := self.why_nobody(delivery)) is not None:
            raise NotDelivered(missing)

    def why_nobody(self, delivery: Delivery) -> str | None:
        """Why an attempt would reach nobody now, as a sentence; None where there is somebody."""
        channel = delivery.channel
        if channel in IN_TRANSCRIPT or channel in self._commands():
            return None
        if self._adapter(channel, delivery.account_id, delivery.session_key) is not None:
            return None
        blind = self._adapter(channel, delivery.account_id, None) is not None
        which = " that may see this session" if blind else ""
        return f"no adapter{which} is attached for channel {channel}"

    def _adapter(self, channel: str, account_id: str | None, session_key: str | None) -> Adapter | None:
        """Of the adapters that serve the session, the newest for the account, else the newest for all accounts."""
        held = self._adapters.get(channel, [])[::-1]
        newest = [one for one in held if session_key is None or one.serves(session_key)]
        exact = (one for one in newest if one.account_id == account_id)
        return next(exact, None) or next((one for one in newest if one.account_id is None or account_id is None), None)

    def _with_threads(self, target: Target, session_key: str | None) -> Adapter | None:
        adapter = self._adapter(target.channel, target.account_id, session_key)
        return adapter if adapter is not None and adapter.threads else None

    async def _deliver_through(self, adapter: Adapter, delivery: Delivery) -> None:
        params = {
            "deliveryId": delivery.delivery_id,
            "to": delivery.to,
            "accountId": delivery.account_id,
            "threadId": delivery.thread_id,
            "sessionKey": delivery.session_key,
            "text": delivery.text,
        }
        try:
            await adapter.ask("channel.deliver", _present(params), timeout_s=ANSWER_S)
        except AgentConnectionLost:
            raise NotDelivered(f"the adapter of {delivery.channel} left before it acknowledged") from None
        except RefusedByAgent as error:
            raise NotDelivered(f"the adapter of {delivery.channel} answered: {error}") from None

    async def _by_command(self, configured: ChannelConfig, delivery: Delivery) -> None:
        command = command_for(configured.command, _fields(delivery), environ=self._environ, cwd=self._cwd)
        try:
            await run_command(command, f"the command of channel {delivery.channel}", ANSWER_S)
        except CommandFailure as error:
            raise NotDelivered(str(error)) from None


def _fields(delivery: Delivery) -> dict[str, str]:
    return {
        "title": delivery.title,
        "text": delivery.text,
        "to": delivery.to,
        "sessionKey": delivery.session_key,
        "deliveryId": delivery.delivery_id,
    }


def _present(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
