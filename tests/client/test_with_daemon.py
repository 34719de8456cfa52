"""Subscriptions against the real daemon, over connections that are lost again and again."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import amount, pick

from sessiond.client import Client, Event, RpcError, TrioClient

pytestmark = pytest.mark.system

KEYS = ["agent:main:main", "agent:main:one", "agent:main:two"]
PROBE = "agent:main:probe"
ROUNDS = amount(150, 25)
LOSSES = amount(25, 4)


@pytest.fixture
def started(daemon: Daemon) -> Daemon:
    daemon.start()
    for key in KEYS:
        daemon.reply(key, "first")
    return daemon


def transcript_of(daemon: Daemon, key: str) -> Path:
    session_id = daemon.call("sessions.resolve", key=key)["sessionId"]
    return next(path for path in daemon.transcripts() if path.stem == session_id)


def append_alternately(daemon: Daemon, keys: list[str]) -> dict[str, list[str]]:
    """Append alternately through the daemon and directly to the files. The texts by session."""
    said: dict[str, list[str]] = {key: [] for key in keys}
    files = {key: transcript_of(daemon, key) for key in keys}
    with daemon.connect() as wire:
        for number in range(ROUNDS):
            key = keys[number % len(keys)]
            message = {"role": "user", "content": f"{key} {number}", "timestamp": 1}
            said[key].append(message["content"])
            if number % 2:
                with files[key].open("a") as file:
                    record = {"type": "message", "id": f"x{number}", "timestamp": "2020-01-01T00:00:00Z"}
                    file.write(json.dumps({**record, "message": message}) + "\n")
                count = number // len(keys) + 1
                # Wait until the daemon has seen the line, so that the order in the file is known here.
                daemon.wait_for(lambda: count_seen(wire, key) >= count, "the appended line is not seen")  # noqa: B023
            else:
                wire.call("chat.inject", sessionKey=key, messages=[message])
    return said


def has_subscribers(daemon: Daemon) -> bool:
    return bool(daemon.call("daemon.status")["subscribers"])


def inject_until(daemon: Daemon, key: str, text: str, heard: Callable[[], object]) -> None:
    """Inject the text until it is heard. The count of subscribers would not do: a client also subscribes for a moment
    to learn the full key of `main`.
    """

    def is_heard() -> bool:
        daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])
        return bool(heard())

    daemon.wait_for(is_heard, "nobody hears it")


def count_seen(wire: Any, key: str) -> int:
    return int(wire.call("sessions_history", sessionKey=key, limit=1)["positions"][-1]["seq"])


@pytest.mark.parametrize("key", pick([None, "agent:main:one"], __name__))
def test_every_message_arrives_once_over_lost_connections(started: Daemon, key: str | None) -> None:
    keys = KEYS if key is None else [key]
    client = Client(str(started.socket))
    seen: dict[str, list[str]] = {one: [] for one in KEYS}
    ready = threading.Event()
    total = threading.Semaphore(0)

    def follow() -> None:
        for event in client.subscribe(key):
            if event.name == "session.message":
                text = event["message"]["content"]
                if text == "ready":
                    ready.set()
                else:
                    seen[event["sessionKey"]].append(text)
                    total.release()

    follower = threading.Thread(target=follow)
    follower.start()
    inject_until(started, keys[0], "ready", ready.is_set)
    done = threading.Event()

    def lose() -> None:
        dice = random.Random(7)
        for _ in range(LOSSES):
            done.wait(dice.random() / 20)
            for link in list(client._links):
                link.close()

    loser = threading.Thread(target=lose)
    loser.start()
    said = append_alternately(started, keys)
    loser.join(PATIENCE_S)
    for _ in range(ROUNDS):
        assert total.acquire(timeout=PATIENCE_S), {one: len(texts) for one, texts in seen.items()}
    client.close()
    follower.join(PATIENCE_S)
    assert not follower.is_alive()
    assert seen == {**{one: [] for one in KEYS}, **said}


async def test_the_trio_client_follows_a_session_over_kill_9(started: Daemon) -> None:
    heard: list[str] = []
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(started.socket)) as client:
            assert (await client.call("sessions_list"))["count"] == 3

            async def follow(task_status: trio.TaskStatus[None]) -> None:
                async for event in client.subscribe("main", await cursor()):
                    if event.name == "session.message":
                        heard.append(event["message"]["content"])
                        if len(heard) == 1:
                            task_status.started()
                        if heard[-1] == "last":
                            return

            async def cursor() -> str:
                page = await client.call("sessions_history", sessionKey="main", limit=1)
                return str(page["cursor"])

            async def say(text: str) -> None:
                async with TrioClient(str(started.socket)) as other:
                    message = {"role": "user", "content": text}
                    await other.call("chat.inject", sessionKey="main", messages=[message])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(say, "zero")
                await nursery.start(follow)
                for number in range(3):
                    await say(f"before {number}")
                    await trio.to_thread.run_sync(started.kill)
                    await trio.to_thread.run_sync(started.start)
                await say("last")
    assert heard == ["zero", "before 0", "before 1", "before 2", "last"]


async def test_an_async_agent_streams_makes_calls_and_answers(daemon: Daemon) -> None:
    daemon.start('[[agents.list]]\nid = "bob"\ndefault = true\nruntime = { type = "attached" }\n')
    deltas: list[Event] = []
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(daemon.socket)) as agent, TrioClient(str(daemon.socket)) as owner:

            async def answer(run: Any) -> str:
                run.delta("let me ")
                mine = await agent.call("sessions_list", _meta=run.meta)
                answer = await run.ask("May I say it?", detail=run.message)
                return f"{answer['note']}: I see {mine['count']} (visibility: {mine['visibility']})"

            async def watch() -> None:
                async for event in owner.subscribe():
                    deltas.extend([event] if event.name == "session.delta" else [])
                    if event.name == "question.asked":
                        question = event["question"]
                        given = {"id": question["id"], "optionId": "yes", "note": question["detail"]}
                        await owner.call("questions.answer", given)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.attach, "bob", answer)
                nursery.start_soon(watch)
                await trio.to_thread.run_sync(daemon.wait_for, lambda: has_subscribers(daemon), "nobody subscribes")
                sent = await owner.call("chat.send", sessionKey="main", message="hello")
                ended = await owner.wait(sent["runId"])
                nursery.cancel_scope.cancel()
    assert (ended["status"], ended["reply"]) == ("ok", "hello: I see 1 (visibility: tree)")
    assert [event["text"] for event in deltas] == ["let me "]


def test_no_call_fails_after_restarts_of_the_daemon_while_the_client_is_idle(daemon: Daemon) -> None:
    daemon.start()
    with Client(str(daemon.socket)) as client:
        for number in range(3):
            sent = client.call("chat.send", sessionKey="main", message=f"m{number}")
            assert client.wait(sent["runId"])["status"] == "ok"
            if number % 2:
                daemon.kill()
            else:
                daemon.stop()
            daemon.start()
        page = client.call("sessions_history", sessionKey="main")
    assert [one["content"] for one in page["messages"] if one["role"] == "user"] == ["m0", "m1", "m2"]


def test_a_follower_of_all_sessions_gets_what_it_missed_while_disconnected(started: Daemon, tmp_path: Path) -> None:
    """Messages before a reset, an older copy put back, a file copied in: each message arrives once and in order."""
    heard: dict[str, list[str]] = {}
    changed = threading.Condition()

    def follow(client: Client) -> None:
        for event in client.subscribe():
            with changed:
                texts = heard.setdefault(event.get("sessionKey", ""), [])
                if event.name == "session.message":
                    content = event["message"]["content"]
                    texts.append(content if isinstance(content, str) else content[0]["text"])
                elif event.name == "session.resync":
                    texts.append(f"({event['reason']})")
                changed.notify_all()

    def wait_for_heard(key: str, *expected: str) -> None:
        with changed:
            assert changed.wait_for(lambda: heard.get(key) == list(expected), timeout=PATIENCE_S), heard

    main, one, two = KEYS
    path = transcript_of(started, one)
    kept = path.read_bytes()
    with Client(str(started.socket)) as client:
        follower = threading.Thread(target=follow, args=(client,))
        follower.start()
        started.call("sessions.create", key=PROBE)
        inject_until(started, PROBE, "ready", lambda: PROBE in heard)
        for key in KEYS:
            say(started, key, "live")
        for key in KEYS:
            wait_for_heard(key, "live")
        say(started, main, "cut off")
        started.kill()
        copied = path.with_name("0f0f0f0f-0000-4000-8000-000000000001.jsonl")
        copied.write_bytes(transcript_of_id(kept, copied.stem, "agent:main:copied"))
        path.write_bytes(kept)
        with transcript_file(started, main).open("ab") as file:
            file.write(b'{"type":"message","id":"t","message":{"role":"user","content":"tail"}}\n')
        with Client(str(started.socket)) as _:
            started.start()
        started.call("sessions.reset", key=main)
        say(started, main, "after the reset")
        say(started, one, "after the copy")
        wait_for_heard(main, "live", "cut off", "tail", "(reset)", "after the reset")
        wait_for_heard(one, "live", "(rewritten)", "first", "first", "after the copy")
        wait_for_heard("agent:main:copied", "first", "first")
        wait_for_heard(two, "live")
    follower.join(PATIENCE_S)


def say(daemon: Daemon, key: str, text: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])


def transcript_file(daemon: Daemon, key: str) -> Path:
    """The file of a session without asking the daemon."""
    folder = daemon.store / "agents" / "main" / "sessions"
    return next(path for path in folder.glob("*.jsonl") if f'"sessionKey":"{key}"' in path.read_text())


def transcript_of_id(data: bytes, session_id: str, key: str) -> bytes:
    lines = data.splitlines(keepends=True)
    header = json.loads(lines[0])
    return json.dumps({**header, "id": session_id, "sessionKey": key}).encode() + b"\n" + b"".join(lines[1:])


def test_a_message_over_the_limit_of_a_connection_is_refused_in_its_words(started: Daemon) -> None:
    """The daemon answers without an id and closes; the call did not get lost."""
    with Client(started.socket) as client, pytest.raises(RpcError) as refused:
        client.call("chat.send", sessionKey=KEYS[0], message="x" * (17 * 1024 * 1024))
    assert (refused.value.slug, "16777216 bytes" in refused.value.message) == ("limit_exceeded", True)
