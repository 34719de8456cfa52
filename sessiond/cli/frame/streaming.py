"""Show the reply of a run while it is written, through a second connection that follows the session."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager, suppress

from sessiond import __version__
from sessiond.cli.terminal.live import StreamedReply
from sessiond.client.blocking import Client
from sessiond.client.errors import ClientError, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sessiond.cli.frame.command import Args

# If subscribing takes longer than this, the reply is shown when it is complete.
SUBSCRIBE_S = 5.0


class ReplyStream(StreamedReply):
    """Follows a session for the reply of the run that `begin` names. Ends with its clients, which `connect` makes."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        super().__init__()
        self._connect = connect
        self._follows = False

    def follow(self, key: str) -> None:
        """Follow from now on. If the session does not exist yet, nothing is shown."""
        stands, client = threading.Event(), self._connect()

        def confirm() -> None:
            self._follows = True
            stands.set()
            with suppress(RpcError):  # a caller that may not list sessions, or a daemon of an earlier release
                asked = client.call("questions.list", {"sessionKey": key, "open": True}, timeout_s=SUBSCRIBE_S)
                for question in asked["questions"]:
                    self.show_open(question)

        def read() -> None:
            # Without the stream the reply is printed at the end; errors are told by the command itself.
            with suppress(ClientError, OSError):
                for event in client.subscribe(key, on_connect=confirm):
                    self.take(event)
            stands.set()

        threading.Thread(target=read, daemon=True).start()
        stands.wait(SUBSCRIBE_S)

    def begin(self, run_id: str, *, elsewhere: bool = False) -> None:
        """Show the reply of this run, which may be in another session than the one that was followed so far."""
        super().begin(run_id)
        if elsewhere or not self._follows:  # the message created the session, whose id is in the run id
            self.follow(run_id.rpartition(".")[0])


@contextmanager
def stream_of(args: Args, key: str) -> Iterator[ReplyStream | None]:
    """The stream of the next reply in a session; None if it is not shown live: no terminal, JSON, no wait."""
    if args.json or args.no_wait or not sys.stdout.isatty():
        yield None
        return
    with ExitStack() as clients:
        stream = ReplyStream(
            lambda: clients.enter_context(Client(args.socket, name="sessiond-cli", version=__version__))
        )
        stream.follow(key)
        yield stream
