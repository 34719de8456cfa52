"""The commands of peers on disk: what came, what became of it, and what was answered; and which of ours nobody has
answered yet. One SQLite file.

Synchronous, for one caller at a time. Knows no daemon and no server. A command is known by its peer and its id, so that
one that comes again is answered and not executed again. No call costs more with a longer history.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from sessiond.errors import ConfigError, StorageError, reason_of
from sessiond.link.database import is_in_use, may_pass, open_alone
from sessiond.link.ledger_tables import COUNT_ALL, SHORT_ANSWER_BYTES, TABLES, in_full
from sessiond.store import dirfd

NAME = "commands.db"
# A sender that was off for longer asks for the answer in vain; its run would be executed a second time after this.
KEPT_MS = 90 * 86_400_000
# What one peer may have here that is not executed, or whose answer the server does not have yet.
MAX_OPEN = 50_000
# The bodies and answers among these. One body is always taken, however long.
MAX_OPEN_BYTES = 64 * 1024 * 1024
# The answers of one peer that were sent. The oldest become a sentence that says so; their commands are known as before.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# The commands of one peer that were answered. A sender asks again within minutes, and not after a million others.
MAX_KEPT = 1_000_000
# The ids of one peer's commands that were refused unread: so that none that somebody has recorded is executed when the
# rules have changed.
MAX_REFUSED = 10_000
# Parts of commands that are not complete. The oldest go first: whoever sent them sends them again.
MAX_PART_BYTES = 64 * 1024 * 1024
# What a part counts beside its bytes, which may be none: its row and its place in an index.
PART_COST_BYTES = 4096

State = Literal["waiting", "running", "answered", "dead"]


class LedgerEntry(msgspec.Struct, frozen=True):
    """One command. `body` is what the peer sent, until its run begins; `answer` what it gets, `is_sent` whether it was
    handed to the server. A `dead` one was given up after `tries`, for `reason`.
    """

    peer: str
    id: str
    state: State
    body: bytes | None = None
    run_id: str | None = None
    session_key: str | None = None
    tries: int = 0
    reason: str | None = None
    answer: bytes | None = None
    is_sent: bool = False
    at_ms: int = 0


class NoRoom(Exception):
    """The peer has too much here that is not executed yet."""


# With the number in the text, or the index of long answers would not be used.
_FORGET_OLDEST = in_full(
    "update commands set answer = ? where peer = ? and id = (select id from commands"
    " where peer = ? and is_sent = 1 and length(answer) > {short} order by at_ms limit 1)"
)
_REMOVE_OLDEST = (
    "delete from commands where peer = ? and id ="
    " (select id from commands where peer = ? and is_sent = 1 order by at_ms limit 1)"
)
# SQLite keeps values of any type in any column, and a stranger may have written them.
_FIELDS = (
    "cast(peer as text), cast(id as text), cast(state as text), cast(body as blob), cast(run_id as text),"
    " cast(session_key as text), cast(tries as integer), cast(reason as text), cast(answer as blob),"
    " cast(is_sent as integer), cast(at_ms as integer)"
)


class CommandLedger:
    """An open ledger. Every change is on the disk when its method returns; StorageError where the disk refuses it.

    Opening it raises StorageError where that may succeed later, and ConfigError where somebody has to mend it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / NAME
        try:
            with dirfd.closing(dirfd.open_root(folder)) as folder_fd:
                # SQLite would follow a link that stands here.
                os.close(dirfd.open_file(folder_fd, NAME, os.O_RDWR | os.O_CREAT))
            self._db = open_alone(path)
            self._db.text_factory = lambda text: text.decode(errors="replace")
            try:
                self._db.executescript(in_full(TABLES))
                if not self._db.execute("pragma user_version").fetchone()[0]:
                    self._db.executescript(in_full(COUNT_ALL))
            except BaseException:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as error:
            if may_pass(error):
                raise StorageError(f"{path} cannot be opened: {reason_of(error)}") from None
            if is_in_use(error):
                used = 'another program uses it, perhaps a "sessiond link run"; end that one'
                raise StorageError(f"{path} cannot be opened: {used}") from None
            raise ConfigError(
                f"{path} cannot be opened: {reason_of(error)}; it has the commands of other machines. If it is damaged,"
                " move it away: what they had sent they send again"
            ) from None

    def close(self) -> None:
        self._db.close()

    @property
    def changes(self) -> int:
        """How many rows were changed since it was opened; also those of changes that were taken back."""
        return self._db.total_changes

    def find(self, peer: str, command_id: str) -> LedgerEntry | None:
        """The command, if it is known."""
        return next(self._entries("where peer = ? and id = ?", peer, command_id), None)

    def accept(self, peer: str, command_id: str, body: bytes, at_ms: int) -> bool:
        """Keep a new command; whether it was new. NoRoom where the peer has too many here."""
        with self._changing() as db:
            if self.find(peer, command_id) is not None:
                return False
            count, held = _total(db, peer, is_sent=False)
            if count >= MAX_OPEN or (held and held + len(body) > MAX_OPEN_BYTES):
                raise NoRoom
            db.execute(
                "insert into commands (peer, id, state, body, at_ms) values (?, ?, 'waiting', ?, ?)",
                (peer, command_id, body, at_ms),
            )
            db.execute("delete from parts where peer = ? and id = ?", (peer, command_id))
        return True

    def note_refused(self, peer: str, command_id: str) -> None:
        """Note a command that was refused without being kept. Of many the oldest are forgotten."""
        with self._changing() as db:
            db.execute("insert or ignore into refused (peer, id) values (?, ?)", (peer, command_id))
            db.execute(
                "delete from refused where peer = ? and number <="
                " (select number from refused where peer = ? order by number desc limit 1 offset ?)",
                (peer, peer, MAX_REFUSED),
            )

    def was_refused(self, peer: str, command_id: str) -> bool:
        """Whether `note_refused` knows the command."""
        with _translate_errors():
            asked = "select 1 from refused where peer = ? and id = ?"
            return self._db.execute(asked, (peer, command_id)).fetchone() is not None

    def put_part(self, peer: str, command_id: str, part: int, parts: int, data: bytes) -> bytes | None:
        """Keep a part of a command; the whole body where all are there, and None where some are missing."""
        with self._changing() as db:
            if self.find(peer, command_id) is not None:
                return None
            # A sender that cuts otherwise than before begins anew.
            db.execute("delete from parts where peer = ? and id = ? and parts != ?", (peer, command_id, parts))
            db.execute(
                "insert or ignore into parts (peer, id, part, parts, data) values (?, ?, ?, ?, ?)",
                (peer, command_id, part, parts, data),
            )
            self._drop_oldest_parts(db, peer)
            count = "select count(*) from parts where peer = ? and id = ?"
            if db.execute(count, (peer, command_id)).fetchone()[0] < parts:
                return None
            held = db.execute(
                "select cast(data as blob) from parts where peer = ? and id = ? order by part", (peer, command_id)
            ).fetchall()
        return b"".join(row[0] for row in held)

    def _drop_oldest_parts(self, db: sqlite3.Connection, peer: str) -> None:
        held = "select total(bytes + count * ?) from part_totals where peer = ?"
        while db.execute(held, (PART_COST_BYTES, peer)).fetchone()[0] > MAX_PART_BYTES:
            oldest = db.execute("select id from parts where peer = ? order by number limit 1", (peer,)).fetchone()
            if oldest is None:
                break
            db.execute("delete from parts where peer = ? and id = ?", (peer, oldest[0]))

    def begin(self, peer: str, command_id: str, run_id: str, session_key: str) -> bool:
        """Note the run that executes the command; False where it was answered meanwhile."""
        with self._changing() as db:
            done = db.execute(
                "update commands set state = 'running', run_id = ?, session_key = ?, body = null"
                " where peer = ? and id = ? and state = 'waiting'",
                (run_id, session_key, peer, command_id),
            )
        return done.rowcount == 1

    def note_try(self, peer: str, command_id: str, reason: str) -> int:
        """Count an attempt that failed for `reason`; how many there were."""
        with self._changing() as db:
            db.execute(
                "update commands set tries = tries + 1, reason = ? where peer = ? and id = ?",
                (reason, peer, command_id),
            )
        found = self.find(peer, command_id)
        return found.tries if found is not None else 0

    def answer(self, peer: str, command_id: str, answer: bytes, *, is_dead: bool = False) -> None:
        """Note the answer, which is still to be sent. The first one stays."""
        with self._changing() as db:
            db.execute(
                "update commands set state = ?, answer = ?, body = null, is_sent = 0"
                " where peer = ? and id = ? and answer is null",
                ("dead" if is_dead else "answered", answer, peer, command_id),
            )

    def stop(self, peer: str, command_id: str, answer: bytes) -> LedgerEntry | None:
        """Note the answer if the run has not begun; the command as it is now."""
        with self._changing() as db:
            db.execute(
                "update commands set state = 'answered', answer = ?, body = null"
                " where peer = ? and id = ? and state = 'waiting'",
                (answer, peer, command_id),
            )
            return self.find(peer, command_id)

    def note_sent(self, peer: str, command_id: str, forgotten: bytes) -> None:
        """Note that the server has the answer. `forgotten` is what the peer's oldest become where all are too much.

        A command without an answer stays as it is.
        """
        assert len(forgotten) <= SHORT_ANSWER_BYTES
        with self._changing() as db:
            db.execute(
                "update commands set is_sent = 1 where peer = ? and id = ? and answer is not null", (peer, command_id)
            )
            # Where nothing is left to go, a stranger has changed the totals.
            while _total(db, peer, is_sent=True)[1] > MAX_ANSWER_BYTES:
                if not db.execute(_FORGET_OLDEST, (forgotten, peer, peer)).rowcount:
                    break
            while _total(db, peer, is_sent=True)[0] > MAX_KEPT:
                if not db.execute(_REMOVE_OLDEST, (peer, peer)).rowcount:
                    break

    def open_commands(self) -> list[LedgerEntry]:
        """The commands without an answer, in the order in which they came."""
        return list(self._entries("where state in ('waiting', 'running') order by at_ms, id"))

    def unsent_answers(self) -> list[LedgerEntry]:
        """The answers that the server does not have yet."""
        return list(self._entries("where answer is not null and is_sent = 0 order by at_ms, id"))

    def dead_letters(self, limit: int = 100) -> list[LedgerEntry]:
        """The commands that were given up, newest first."""
        return list(self._entries("where state = 'dead' order by at_ms desc limit ?", limit))

    def counts(self) -> dict[str, dict[State, int]]:
        """How many commands each peer has here in each state."""
        found: dict[str, dict[State, int]] = {}
        with _translate_errors():
            rows = self._db.execute(
                "select cast(peer as text), cast(state as text), cast(total(count) as integer) from totals"
                " group by 1, 2 having total(count) >= 1"
            ).fetchall()
        for peer, state, count in rows:
            found.setdefault(peer, {})[state] = count
        return found

    def forget_old(self, now_ms: int) -> None:
        """Remove what was answered long ago, and what was asked long ago of whoever never answers."""
        with self._changing() as db:
            db.execute("delete from asked where at_ms < ?", (now_ms - KEPT_MS,))
            db.execute(
                "delete from commands where answer is not null and is_sent = 1 and at_ms < ?", (now_ms - KEPT_MS,)
            )

    def note_asked(self, peer: str, command_id: str, at_ms: int) -> None:
        """Note a command of ours that the peer is going to get."""
        with self._changing() as db:
            db.execute("insert or replace into asked values (?, ?, ?)", (peer, command_id, at_ms))

    def note_answered(self, peer: str, command_id: str) -> None:
        """Note that the peer has answered our command."""
        with self._changing() as db:
            db.execute("delete from asked where peer = ? and id = ?", (peer, command_id))

    def unanswered_commands(self) -> list[tuple[str, str]]:
        """Our commands that no peer has answered: the peer and the id of each."""
        with _translate_errors():
            asked = "select cast(peer as text), cast(id as text) from asked order by at_ms, id"
            return self._db.execute(asked).fetchall()

    def note_child(self, peer: str, local_key: str, remote_key: str) -> None:
        """Note that the sub-agent `local_key` here is `remote_key` on the peer."""
        with self._changing() as db:
            db.execute("insert or replace into children values (?, ?, ?)", (peer, local_key, remote_key))

    def child(self, peer: str, local_key: str) -> str | None:
        """The sub-agent on the peer that `local_key` stands for."""
        with _translate_errors():
            row = self._db.execute(
                "select cast(remote_key as text) from children where peer = ? and local_key = ?", (peer, local_key)
            ).fetchone()
        return row[0] if row is not None else None

    def _entries(self, condition: str, *values: object) -> Iterator[LedgerEntry]:
        with _translate_errors():
            rows = self._db.execute(f"select {_FIELDS} from commands {condition}", values).fetchall()  # noqa: S608
        for row in rows:
            named = dict(zip(LedgerEntry.__struct_fields__, row, strict=True))
            yield LedgerEntry(**{**named, "is_sent": bool(named["is_sent"])})

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with _translate_errors():
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back already
                    self._db.execute("rollback")
                raise


def _total(db: sqlite3.Connection, peer: str, *, is_sent: bool) -> tuple[int, int]:
    """How many commands a peer has here whose answer was sent, or was not, and what counts of their bytes."""
    found: tuple[int, int] = db.execute(
        "select cast(total(count) as integer), cast(total(bytes) as integer) from totals"
        " where peer = ? and is_sent = ?",
        (peer, is_sent),
    ).fetchone()
    return found


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(f"{NAME} cannot be written or read: {error}") from None
