"""Publish what happened to a session, and lead its followers from one session of a key to the next.

Knows the store and the bus. Does not read files.
"""

from __future__ import annotations

from sessiond.events.bus import EventBus
from sessiond.events.changes import change_of, changed_event, end_place_of, question_event
from sessiond.events.replay import message_event
from sessiond.events.subscription import FollowPlace
from sessiond.model.event import ChangedEvent, Phase
from sessiond.model.record import ANSWER, HOOK, QUESTION
from sessiond.store.catalog import Session
from sessiond.store.folded_steps import FoldedLine
from sessiond.store.store import SessionStore


class Publisher:
    """Publishes to the followers of a session."""

    def __init__(self, store: SessionStore, bus: EventBus) -> None:
        self._store, self._bus = store, bus

    def publish_change(self, session: Session, phase: Phase, reason: str | None, *, deleted: bool = False) -> None:
        """Publish a change of a session that is no record in its transcript, such as a reset."""
        if not self._bus.has_follower(session.key):
            return
        if session.entry.attends is not None:
            if phase != "create":  # its first record, which says more, is published as well
                self._publish_attended(session, reason)
            return
        entry = session.entry
        # A follower of a new session has had nothing of it.
        begins = phase in ("create", "reset")
        event = ChangedEvent(
            key=session.key,
            session_id=session.session_id,
            phase=phase,
            reason=reason,
            entry=None if deleted else entry,
            end_offset=0 if begins else entry.file.folded_to,
            seq=0 if begins else entry.message_count,
            spawned_by=entry.spawned_by,
        )
        self._bus.publish(event)

    def needs_steps(self, session: Session) -> bool:
        """Whether it matters what each line changes: for followers; for the log, of our own sessions; and where a line
        may take messages away.
        """
        is_alone = session.folder.source is not None and not session.dialect.lists
        return not is_alone or self._bus.has_follower(session.key)

    def publish_records(self, session: Session, steps: list[FoldedLine]) -> None:
        """Publish the messages and changes in lines of a session."""
        if not self._bus.has_follower(session.key):
            return
        if session.entry.attends is not None:
            self._publish_attending(session, steps)
            return
        is_read, is_watched = self._bus.has_reader(session.key), self._bus.is_watched(session.key)
        for step in steps:
            record = step.line.record
            if record is None:
                continue
            if record.message is not None:
                if is_read:
                    self._bus.publish(
                        message_event(self._store, session, step.line, step.seq, step.check, part_of=step.part_of)
                    )
            elif (asked := question_event(session, record)) is not None:
                self._bus.publish(asked)
            if is_watched and (change := change_of(record)) is not None:
                self._bus.publish(changed_event(session, step, *change))

    def _publish_attending(self, session: Session, steps: list[FoldedLine]) -> None:
        """Publish what a session says of the one that it attends. Its messages are for that one's program only."""
        for step in steps:
            record = step.line.record
            if record is None or record.message is not None:
                continue
            if (asked := question_event(session, record)) is not None:
                self._bus.publish(asked)
            change = change_of(record)
            if change is not None and record.custom_type in (HOOK, QUESTION, ANSWER):
                self._publish_attended(session, change[1])

    def _publish_attended(self, session: Session, reason: str | None) -> None:
        """Publish that the row of the attended session may have changed."""
        attended = self._store.catalog.by_key.get(session.key)
        if attended is not None:
            self.publish_change(attended, "patch", reason)

    def switch_followers(self, session: Session) -> None:
        """Let the key's followers read on in this session, which is new to them."""
        if session.entry.attends is not None:
            return
        rivals = self._store.catalog.superseded_sessions(session.key)
        if not rivals:
            self.switch_former_followers(session)
            self._bus.switch_session(session.key, FollowPlace(session.session_id, 0, 0))
            return
        # The newest of them had the key until now; every follower has had, or will get, what was read of it.
        self._bus.switch_session(session.key, end_place_of(rivals[-1]))
        self._store.read_new(rivals[-1])

    def switch_former_followers(self, session: Session) -> None:
        """Let followers of a deleted session that had the key before read that one to its end first."""
        if session.entry.attends is not None:
            return
        older = self._store.catalog.older(session.key)
        place = end_place_of(older[-1]) if older else FollowPlace(session.session_id, 0, 0)
        self._bus.switch_session(session.key, place, known_only=True)
