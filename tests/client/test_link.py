"""One connection of the blocking client, closed by one thread while another uses it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.patience import PATIENCE_S

from sessiond.client.errors import ConnectionLost, NotSent
from sessiond.client.link import ClientLink


@contextmanager
def connected(folder: Path) -> Iterator[ClientLink]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        link = ClientLink(str(folder / "s"))
        accepted, _ = listener.accept()
        with accepted:
            yield link
        link.close()


def test_a_closed_link_waits_for_no_other_file_that_has_its_number(tmp_path: Path) -> None:
    with connected(tmp_path) as link, ExitStack() as open_files:
        number = link.fileno()
        link.close()
        taken = os.open(tmp_path, os.O_PATH)
        one, other = (open_files.enter_context(end) for end in socket.socketpair())
        os.close(taken)
        if one.fileno() != number:
            os.dup2(one.fileno(), number)
            open_files.callback(os.close, number)
        assert link.has_data(), "its end"
        with pytest.raises(ConnectionLost):
            link.receive(time.monotonic() + 1)
        with pytest.raises(NotSent):
            link.send(b"x\n")
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_the_number_is_given_back_when_the_thread_that_reads_has_seen_the_end(tmp_path: Path) -> None:
    with connected(tmp_path) as link:
        ended: list[str] = []

        def read() -> None:
            with pytest.raises(ConnectionLost) as lost:
                link.receive()
            ended.append(str(lost.value))

        reader = threading.Thread(target=read)
        reader.start()
        link.close()
        reader.join(PATIENCE_S)
        assert not reader.is_alive() and len(ended) == 1
        assert link.fileno() == -1
