"""nats-py's client, for a server that need not mean well and a network that loses what it likes.

The library believes what a server says, in length, form and address. This one takes no more than a server may say, goes
to no other server, gives up no connection without a new one, and says nothing to a server that offers no TLS where TLS
is wanted. Knows no subjects but its inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.nuid import NUID
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

# No server takes longer messages. What is longer than an envelope is refused where envelopes are opened.
MAX_MESSAGE_BYTES: Final = 64 << 20
# A line of a server, the longest of which is its greeting.
MAX_LINE_BYTES: Final = 64 << 10
# A connection that is to be closed may hand over for so long what is still to be sent.
CLOSE_S: Final = 2.0
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class BadAnswerError(nats.errors.ProtocolError):
    """What came is no answer of a nats-server."""

    def __str__(self) -> str:
        return "it answers what no nats-server does"


@contextlib.contextmanager
def check_answer() -> Iterator[None]:
    """BadAnswerError where the server's answer breaks the library, which looks at nothing that it takes out of one."""
    try:
        yield
    except (nats.errors.Error, OSError):  # a certificate that cannot be verified is a ValueError as well
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise BadAnswerError from None


class _RandomInboxes(NUID):
    """What inboxes end with. The library counts on from one to the next, and who has seen two knows the third."""

    def next(self) -> bytearray:
        return bytearray(secrets.token_hex(11).encode())


class _BoundedParser(Parser):
    """Ends the connection for what is no message, where the library stops to read and says nothing, and for what is
    longer than any, where it would keep whatever comes.
    """

    async def parse(self, data: bytes = b"") -> None:
        try:
            with check_answer():
                await super().parse(data)
        except OSError:
            raise
        except nats.errors.Error:
            raise BadAnswerError from None
        most = MAX_LINE_BYTES if self.state == AWAITING_CONTROL_LINE else MAX_MESSAGE_BYTES
        if self.needed > MAX_MESSAGE_BYTES or len(self.buf) > most:
            raise BadAnswerError


class ServerClient(Client):
    """See the module. `wants_tls`: a server without TLS is told nothing; the library encrypts when the server asks for
    it, and whoever stands between could take that line away.
    """

    wants_tls = False

    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)
        self._nuid = _RandomInboxes()
        self._watched: dict[str, asyncio.Future[None]] = {}

    def watch_denial(self, subject: str) -> asyncio.Future[None]:
        """Done when the server says that the subject is forbidden: what was published there is answered by nobody."""
        watching = self._watched[subject.lower()] = asyncio.get_running_loop().create_future()
        return watching

    async def end(self) -> None:
        """Close it, also where it was never let in: the library leaves the socket of such a connection open."""
        with contextlib.suppress(nats.errors.Error, OSError):  # something was still to be sent, and the server is gone
            await self.close()
        self._abort()
        await asyncio.sleep(0)  # the loop closes it in its next round

    def note(self, error: Exception) -> None:
        """An error that came beside the answers."""
        denied = denied_subject(error)
        watching = self._watched.pop(denied[1], None) if denied else None
        if watching is not None and not watching.done():
            watching.set_result(None)

    def _abort(self) -> None:
        """Drop the connection, with what is still to be sent: a server that does not read would be waited for."""
        for writer in (getattr(self._transport, name, None) for name in ("_io_writer", "_bare_io_writer")):
            if writer is not None:
                # In Python 3.11.2, TLS that was closed twice knows no connection any more, and fails at that.
                with contextlib.suppress(AttributeError):
                    writer.transport.abort()

    # What the library calls.

    def _connect_command(self) -> bytes:
        info: dict[str, Any] = self._server_info
        if self.wants_tls and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        return super()._connect_command()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Where else to go is for the configuration to say: whoever stands between says this line before there is TLS.
        told = {name: value for name, value in info.items() if name != "connect_urls"}
        await super()._process_info(told, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            with check_answer():
                await super()._process_connect_init()
            if not self.is_connected:
                # Its ping was answered with something else. The library goes on all the same, and stays so.
                for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
                    if task is not None:
                        task.cancel()
                raise BadAnswerError
        except (nats.errors.Error, OSError):
            self._abort()  # the library makes the next connection, and leaves this one open
            raise

    async def _process_pong(self) -> None:
        # Whoever waited for it has given up: the library would stop to read.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _attempt_reconnect(self) -> None:
        self._abort()
        await super()._attempt_reconnect()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        giving_up = asyncio.get_running_loop().call_later(CLOSE_S, self._abort)
        try:
            await super()._close(status, do_cbs)
        except OSError:
            # What was to be sent is lost. The library leaves all else as it is then, and tells nobody.
            for subscription in self._subs.values():
                task: asyncio.Task[Any] | None = getattr(subscription, "_wait_for_msgs_task", None)
                if task is not None:
                    task.cancel()
            self._subs.clear()
            for name in ("_disconnected_cb", "_closed_cb") if do_cbs else ():
                tell = getattr(self, name)
                if tell is not None:
                    await tell()
        finally:
            giving_up.cancel()


def denied_subject(error: Exception) -> tuple[str, str] | None:
    """`publish` or `subscribe`, and the subject that the server's permissions refuse, in lower case, as the library has
    it; None for any other error.
    """
    found = _DENIED.search(str(error))
    return None if found is None else ("publish" if found[1].lower() == "publish" else "subscribe", found[2].lower())
