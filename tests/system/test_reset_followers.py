"""Messages injected concurrently with resets reach every follower of the real daemon.

With SESSIOND_TESTS=whole there are 800 injects and 40 resets.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.real_daemon import Daemon
from support.sampling import amount, pick

pytestmark = pytest.mark.system

KEY = "agent:main:main"
WRITERS, MESSAGES_EACH, RESETS = (4, amount(200, 25), amount(40, 5))


@pytest.mark.parametrize("key", pick([KEY, None], __name__))
def test_every_message_acknowledged_during_resets_is_pushed_once(daemon: Daemon, key: str | None) -> None:
    daemon.start()
    daemon.call("sessions.create", key=KEY)
    follower = daemon.connect()
    if key is None:
        follower.call("sessions.subscribe")
    else:
        follower.call("sessions.messages.subscribe", key=key)
    acknowledged: list[list[str]] = [[] for _ in range(WRITERS)]

    def write(number: int) -> None:
        with daemon.connect() as wire:
            for count in range(MESSAGES_EACH):
                text = f"{number} {count}"
                message = {"role": "user", "content": text}
                answer = wire.ask("chat.inject", sessionKey=KEY, messages=[message])
                if "result" in answer:
                    acknowledged[number].append(text)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for _ in range(RESETS):
        daemon.call("sessions.reset", key=KEY)
    for writer in writers:
        writer.join()
    daemon.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "last"}])
    heard: list[str] = []
    while "last" not in heard:
        event: dict[str, Any] = follower.event("session.message")
        heard.append(event["message"]["content"])
    follower.close()
    assert sorted(heard) == sorted(["last", *(text for texts in acknowledged for text in texts)])
    for number, texts in enumerate(acknowledged):
        assert len(texts) == MESSAGES_EACH
        assert [text for text in heard if text.startswith(f"{number} ")] == texts
