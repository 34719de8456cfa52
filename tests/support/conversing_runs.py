"""A run harness with conversations, the outbox and channels, put together as the daemon does.

`Adapter` is a channel's connection that does what the test says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.supervised_runs import Agent, FakeHost, RunHarness, clock, ignore_call, inline, run_harness

from sessiond.attachments.service import AttachmentService
from sessiond.clock import Ids
from sessiond.config.settings import Config, parse
from sessiond.conversations.announce_step import AnnounceStep, make_policy_check
from sessiond.conversations.handing_over import Handover
from sessiond.conversations.provenance import ProvenanceStamp, Sender
from sessiond.conversations.reply_back import ReplyBack
from sessiond.conversations.send import MessageSender, NewMessage
from sessiond.delivery.channels import Channels
from sessiond.delivery.outbox import Outbox, open_outbox
from sessiond.runs.recovery import recover
from sessiond.runs.run import Run
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runtimes.attached import AttachedAgents
from sessiond.runtimes.runtime import RunOutcome
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session

ALICE, BOB = "agent:alice:main", "agent:bob:telegram:group:-100"


def source_session(session: Session, run: Run | None = None) -> Sender:
    """The sender of a message that a session's own run sends."""
    return Sender(session.key, session, run, counted_as=session.key, waiter=run)


class Adapter:
    """A channel adapter that records its requests and answers with `act`."""

    def __init__(self, *, account_id: str | None = None, threads: bool = False) -> None:
        self.account_id, self.threads = account_id, threads
        self.hidden: set[str] = set()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.act: Callable[[dict[str, Any]], Awaitable[Any]] = self.acknowledge
        self.arrived = trio.Event()

    @property
    def connection(self) -> object:
        return self

    def serves(self, session_key: str) -> bool:
        return session_key not in self.hidden

    async def ask(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        self.asked.append((method, params))
        self.arrived.set()
        await trio.lowlevel.checkpoint()
        return await self.act(params)

    async def acknowledge(self, params: dict[str, Any]) -> Any:
        return {}

    @property
    def texts(self) -> list[str]:
        return [params["text"] for method, params in self.asked if method == "channel.deliver"]

    @property
    def ids(self) -> set[str]:
        return {params["deliveryId"] for method, params in self.asked if method == "channel.deliver"}


class ConversationHarness:
    """The agents Alice and Bob, with conversations, outbox and channels."""

    def __init__(self, runs: RunHarness, config: Config) -> None:
        self.runs, self.config = runs, config
        self.channels = Channels(
            lambda: self.config.channels,
            environ={},
            cwd=Path("/"),
            on_attach=lambda channel: self.outbox.make_due(channel),  # noqa: PLW0108 - opened later
        )
        self.outbox: Outbox
        self.conversations: ReplyBack
        self.sends: MessageSender
        # The sessions whose conversations have ended.
        self.freed: list[str] = []

    def build(self, outbox: Outbox) -> None:
        runs = self.runs
        self.outbox = outbox
        announcing = AnnounceStep(runs.store, self.channels, outbox, lambda: self.config, clock())
        self.conversations = ReplyBack(
            runs.store, runs.supervisor, announcing, lambda: self.config, clock(), on_closed=self._close
        )
        self.sends = MessageSender(
            runs.store,
            runs.supervisor,
            ProvenanceStamp(announcing, lambda: self.config, clock(), Ids()),
            lambda: self.config,
            clock(),
            session_changes=SessionChanges(runs.store, ignore_call),
            feed=runs.feed,
            attached=AttachedAgents(ignore_call, lambda _: False),
            attachments=AttachmentService(run_sync=inline),
            journal=SpawnJournal(runs.store),
            handover=Handover(runs.store, clock(), Ids()),
            workspace=lambda agent_id: runs.host.folder / agent_id,
        )
        self.announcing = announcing
        runs.follow_ups.append(self.conversations)

    async def _close(self, session: Session) -> None:
        await trio.lowlevel.checkpoint()
        self.freed.append(session.key)

    async def send(
        self,
        text: str,
        *,
        source: str | None = ALICE,
        target: str = BOB,
        run: Run | None = None,
        key: str | None = None,
    ) -> Run:
        """Accept a message of sessions_send; from the owner if `source` is None."""
        sender = await self.runs.session(source) if source is not None else None
        return await self.accept_message(
            await self.runs.session(target),
            text,
            source=source_session(sender, run) if sender is not None else Sender(),
            idempotency_key=key,
        )

    async def accept_message(self, target: Session, text: str, *, source: Sender | None = None, **fields: Any) -> Run:
        """Accept a message of `sessions_send` or a similar method, with more of its `fields`."""
        sent = await self.sends.send(
            target,
            NewMessage(text=text, tool="sessions_send", source=source, payload={"message": text}, **fields),
            on_queued=lambda: None,
        )
        found = self.runs.supervisor.registry.get(sent.run_id)
        assert found is not None
        return found

    async def wait_until_settled(self) -> None:
        """Return when there is no open conversation, no run and no delivery."""
        while self._busy():  # noqa: ASYNC110 - with an autojump clock a sleep lets all other tasks run
            await trio.sleep(1)

    def _busy(self) -> bool:
        sessions = self.runs.store.catalog.newest()
        return bool(self.outbox.pending) or any(one.entry.talks or one.entry.runs for one in sessions)


def scripted(*answers: str) -> Agent:
    """An agent that gives these answers one after the other, and repeats the last one."""
    agent = Agent()
    left = list(answers)

    async def act(spec: Any, sink: Any) -> Any:
        return RunOutcome(reply=left.pop(0) if len(left) > 1 else left[0])

    agent.act = act
    return agent


def host_with(folder: Path, **agents: Agent) -> FakeHost:
    host = FakeHost(folder)
    host.agents = dict(agents)
    return host


@asynccontextmanager
async def conversation_harness(
    folder: Path, host: FakeHost, *, config: str = "", adapters: dict[str, Adapter] | None = None, **options: Any
) -> AsyncIterator[ConversationHarness]:
    """A harness on the store at `folder`, after recovery as in the daemon."""
    async with run_harness(folder, host=host, recovering=False, **options) as runs:
        made = ConversationHarness(runs, parse(config))
        async with open_outbox(
            runs.store,
            made.channels,
            made.channels,
            clock(),
            durable=False,
            settings=lambda: made.config.delivery,
            allowed=make_policy_check(runs.store, lambda: made.config),
        ) as outbox:
            made.build(outbox)
            for channel, adapter in (adapters or {}).items():
                made.channels.attach(channel, adapter)
            await recover(runs.store, runs.supervisor, [made.conversations])
            await runs.nursery.start(outbox.run)
            yield made
            runs.nursery.cancel_scope.cancel()
