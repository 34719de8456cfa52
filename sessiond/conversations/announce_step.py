"""The last step of a conversation: put its announcement into the outbox, unless nothing has to leave the daemon.

Decides where a session's texts are delivered. Does not decide what they say.
Source: runs.md, "sessions_send", "Send policy".
"""

from __future__ import annotations

from collections.abc import Callable

from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.conversations import open_conversation as records
from sessiond.conversations.open_conversation import ClosingRecord, OpenConversation
from sessiond.delivery.channels import Channels, Delivery
from sessiond.delivery.outbox import DeliveryStatus, Outbox
from sessiond.model.keys import display_key, kind_of
from sessiond.model.row import channel_of
from sessiond.policy import send as send_policy
from sessiond.policy.target import Target, target_of
from sessiond.runs.run import SettledDelivery
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


def make_policy_check(store: SessionStore, config: Callable[[], Config]) -> Callable[[Delivery], bool]:
    """The check of the send policy that the outbox makes before every attempt."""

    def is_allowed(delivery: Delivery) -> bool:
        session = store.catalog.by_key.get(delivery.session_key)
        entry = session.entry if session is not None else None
        return send_policy.decide(config().session.send_policy, delivery.session_key, entry) == "allow"

    return is_allowed


class AnnounceStep:
    """Puts texts into the outbox if their session has a target. The AnnouncementOutbox of sub-agents, too."""

    def __init__(
        self, store: SessionStore, channels: Channels, outbox: Outbox, config: Callable[[], Config], clock: Clock
    ) -> None:
        self._store, self._channels, self._outbox = store, channels, outbox
        self._config, self._clock = config, clock

    def hold(self, delivery_id: str) -> None:
        """Hold a delivery with this id that an earlier process left, until `send`."""
        self._outbox.hold(delivery_id)

    async def put(self, session: Session, text: str, delivery_id: str) -> None:
        """Write the text to the outbox, if it has to leave the daemon, and hold it until `send`. StorageError."""
        if self._outbox.status(delivery_id) is None and self.status_without_delivery(session, text) is None:
            await self._outbox.put(self._delivery(session, text, delivery_id))

    def send(self, delivery_id: str) -> None:
        """Send the delivery, if there is one with this id."""
        self._outbox.send(delivery_id)

    def status_without_delivery(self, session: Session, text: str | None) -> SettledDelivery | None:
        """The final status of a delivery that does not have to leave the daemon; None for one that has to."""
        target = self._target(session, text)
        if target is None:
            return "skipped"
        return "delivered" if self._channels.in_transcript(target.channel) else None

    def has_target(self, session: Session) -> bool:
        """Whether a text of this session would be delivered anywhere, its transcript included."""
        return self._target(session, "words") is not None

    def has_to_leave(self, session: Session, text: str | None) -> bool:
        """Whether this text has to leave the daemon."""
        return self.status_without_delivery(session, text) is None

    async def announce(self, conversation: OpenConversation, text: str | None) -> None:
        """Close the conversation with this text: write it to the outbox, write the closing record, then send it."""
        made = records.delivery_id(conversation.talk_id)
        status = self.status_without_delivery(conversation.home, text)
        # A delivery that an earlier process put into the outbox is sent, even if the policy has changed since.
        if self._outbox.status(made) is None and status is None:
            await self._outbox.put(self._delivery(conversation.home, text or "", made))
        outside = self._outbox.status(made) is not None
        closed = ClosingRecord(
            talk_id=conversation.talk_id,
            delivery="pending" if outside else status or "skipped",
            delivery_id=made if outside else None,
        )
        await self._store.append(conversation.home, [records.closing_record(closed)])
        self._outbox.send(made)

    def _delivery(self, session: Session, text: str, delivery_id: str) -> Delivery:
        target = target_of(session.key, session.entry)
        assert target is not None
        entry = session.entry
        return Delivery(
            delivery_id=delivery_id,
            channel=target.channel,
            to=target.to or session.key,
            account_id=target.account_id,
            thread_id=target.thread_id,
            session_key=session.key,
            text=text.strip(),
            title=entry.display_name or entry.label or display_key(session.key, self._store.rules, None),
            created_at=self._clock.wall_ms(),
        )

    async def status(self, session: Session, talk_id: str) -> DeliveryStatus:
        """The status of the delivery of a conversation; `pending` also if the conversation is still open."""
        # The entry of an archived transcript is not updated any more, so read from its file whether it was closed
        # since.
        archived = session.archived
        if not archived and any(one.talk_id == talk_id for one in session.entry.talks):
            return "pending"
        end = None if archived else session.entry.file.folded_to
        closed: ClosingRecord | None = await self._store.read(
            session, records.find_closing_record, talk_id, end, self._store.record_limit, session.dialect
        )
        if closed is None or closed.delivery != "pending":
            return "pending" if closed is None else closed.delivery
        return self._outbox.status(records.delivery_id(talk_id)) or "delivered"

    def channel_of(self, key: str | None) -> str | None:
        """The name of a session's channel, for preambles and provenance; None if it is not known."""
        session = self._store.catalog.by_key.get(key or "")
        if session is None:
            return None
        kind = kind_of(session.key, self._store.rules, session.entry.chat_type)
        channel = channel_of(session.key, kind, session.entry)
        return None if channel == "unknown" else channel

    def _target(self, session: Session, text: str | None) -> Target | None:
        if not text or not text.strip():
            return None
        policy = self._config().session.send_policy
        if send_policy.decide(policy, session.key, session.entry) == "deny":
            return None
        return target_of(session.key, session.entry)
