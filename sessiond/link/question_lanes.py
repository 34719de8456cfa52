"""What other machines ask this one, each in a lane of its own: none keeps the others from being heard.

A machine asks on a subject of its own, which the server lets nobody else publish to. One that asks faster than it is
answered is answered more slowly; one that does not wait for answers is not listened to for a while, so that the server
drops what it sends, and not this program. Knows bytes, and not what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sessiond.link.pacing import ArrivalPace
from sessiond.link.subjects import ask_subject

log = structlog.get_logger("sessiond.link")

# A machine has a few questions on their way at most. Where so many wait, it does not wait for answers.
MOST_WAITING: Final = 32
# A question is a few hundred bytes; one that is longer is none.
MAX_QUESTION_BYTES: Final = 16 << 10
# A question costs about half a millisecond. So many are answered at once, and so many a second later on.
BURST: Final = 5000
PER_S: Final = 500.0
# How long a machine that floods its lane is not listened to.
REST_S: Final = 5.0
# What the library holds of a lane until it is taken; it drops what is beyond.
_MOST_HELD: Final = 1024
_HELD_BYTES: Final = 4 << 20

# `answerer(sender, question)`: the answer, None for none.
Answerer = Callable[[str, bytes], Awaitable[bytes | None]]
Respond = Callable[[str, bytes], Awaitable[None]]


class QuestionLane:
    """The questions of `sender` to `machine`."""

    def __init__(self, machine: str, sender: str, answerer: Answerer, respond: Respond) -> None:
        self.sender = sender
        self._subject = ask_subject(machine, sender)
        self._answerer, self._respond = answerer, respond
        self._questions: asyncio.Queue[Msg] = asyncio.Queue(MOST_WAITING)
        self._flooded = asyncio.Event()
        self._client: Client | None = None
        self._listening: Subscription | None = None
        self._pace = ArrivalPace(BURST, PER_S)

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_all())
            tasks.create_task(self._rest_after_floods())

    async def listen(self, client: Client) -> None:
        """Take the questions from a new connection. nats.errors.Error."""
        self._client = client
        if not self._flooded.is_set():
            self._listening = await client.subscribe(
                self._subject, cb=self._take, pending_msgs_limit=_MOST_HELD, pending_bytes_limit=_HELD_BYTES
            )

    async def _take(self, message: Msg) -> None:
        if self._flooded.is_set():
            return
        if len(message.data) > MAX_QUESTION_BYTES:
            message.data = b""
        try:
            self._questions.put_nowait(message)
        except asyncio.QueueFull:
            self._flooded.set()

    async def _answer_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await self._questions.get()
            await asyncio.sleep(self._pace.delay_s(loop.time()))
            answer = await self._answerer(self.sender, message.data)
            if answer is not None and message.reply:
                await self._respond(message.reply, answer)

    async def _rest_after_floods(self) -> None:
        while True:
            await self._flooded.wait()
            log.warning("a machine floods this one with questions; it is not heard for a while", machine=self.sender)
            with contextlib.suppress(nats.errors.Error, OSError):
                if self._listening is not None:
                    await self._listening.unsubscribe()
            self._listening = None
            await asyncio.sleep(REST_S)
            while not self._questions.empty():
                self._questions.get_nowait()
            self._flooded.clear()
            with contextlib.suppress(nats.errors.Error, OSError):
                if self._client is not None and self._listening is None:
                    await self.listen(self._client)
