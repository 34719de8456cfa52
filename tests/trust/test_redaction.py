"""Secrets are masked in everything a caller with a token can read, also when cut; the owner and the file keep them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.model.caller import OWNER, Caller
from sessiond.policy.secrets import MASK, mask_next
from sessiond.transports.exchange import EventStreamAnswer, HttpRequest, HttpResponse
from sessiond.transports.routes import Router
from sessiond.transports.sse import EventStream

CONFIG = """
[store]
durability = "os"
[session]
agentToAgent = {{ maxPingPongTurns = 0 }}
[tools.sessions]
redact = {redact}
redactPatterns = ['order-[0-9]{{8,}}']
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
[[agents.list]]
id = "attached"
runtime = {{ type = "attached" }}
[[agents.list]]
id = "failing"
runtime = {{ type = "exec", command = ["sh", "-c", "cat >&2; exit 3"] }}
"""
KEY = "agent:main:secretive"
# Invented secrets. The characters between the first six and the last four must never be shown.
TOKEN = "sk-" + "QkZrT3VwWm1YbkNqVnJHeVBs" * 2
ORDER = "order-" + "31415926535897932384"
PASSWORD = "correct-horse-battery-staple-xyzzy"
SECRETS = (TOKEN, ORDER, PASSWORD)
KINDS = {"session.message", "session.delta", "sessions.changed"}
TEXT = f"use {TOKEN} or {ORDER}, with password={PASSWORD} please"


def pieces_of(secret: str) -> set[str]:
    """Every eight characters in a row that a mask must not show."""
    middle = secret[6:-4]
    return {middle[at : at + 8] for at in range(len(middle) - 7)}


def secrets_in(text: str) -> list[str]:
    """The secrets of which the text shows a part."""
    return [secret for secret in SECRETS if any(piece in text for piece in pieces_of(secret))]


class SecretsDaemon:
    """A daemon with a session full of secrets."""

    def __init__(self, parts: InProcessDaemon, owner: Connection) -> None:
        self.parts, self.owner = parts, owner
        self.router = Router()
        add_session_routes(self.router, parts.services)

    async def token(self, **claims: Any) -> Caller:
        scopes = ["list", "read", "send"]
        minted = await self.owner.call("tokens.mint", scopes=scopes, **(claims or {"sessionKey": KEY}))
        caller: Caller = self.parts.services.tokens.caller(minted["token"])
        return caller

    async def http(self, caller: Caller, **query: str) -> HttpResponse | EventStreamAnswer:
        route, params = self.router.find("GET", f"/sessions/{KEY}/history")
        request = HttpRequest(method="GET", path="/", params=params, query=query, headers={}, body=b"", caller=caller)
        answer: HttpResponse | EventStreamAnswer = await route.handler(request)
        return answer


@asynccontextmanager
async def open_daemon_with_secrets(folder: Path, *, redact: bool = True) -> AsyncIterator[SecretsDaemon]:
    async with in_process_daemon(folder, CONFIG.format(redact=str(redact).lower())) as parts, parts.connect() as owner:
        await owner.say(KEY, TEXT)
        tools = [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": TEXT},
                    {
                        "type": "toolCall",
                        "id": "1",
                        "name": "sh",
                        "arguments": {"env": {"API_KEY": TOKEN}, "run": TEXT},
                    },
                    {"type": "toolCall", "id": "2", "name": "sh", "arguments": json.dumps({"note": TEXT})},
                ],
            },
            {"role": "toolResult", "toolCallId": "1", "toolName": "sh", "content": [{"type": "text", "text": TEXT}]},
            {"role": "user", "content": TEXT},
        ]
        await owner.call("chat.inject", sessionKey=KEY, messages=tools)
        yield SecretsDaemon(parts, owner)


async def follow(made: SecretsDaemon, caller: Caller, is_last: Callable[[str], bool]) -> str:
    """The text of an event stream up to the first piece for which `is_last` is true."""
    answer = await made.http(caller, follow="1", includeTools="1")
    assert isinstance(answer, EventStreamAnswer)
    sent: list[str] = []

    async def send(data: bytes) -> None:
        sent.append(data.decode())
        await trio.lowlevel.checkpoint()

    stream = EventStream(send, caller)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer.run, stream)
        with trio.fail_after(PATIENCE_S):
            while not any(map(is_last, sent)):  # noqa: ASYNC110 - nothing signals that a piece was sent
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    return "".join(sent)


async def read_everything(made: SecretsDaemon, caller: Caller) -> dict[str, str]:
    """What each method, event and HTTP route shows this caller, as text."""
    said: dict[str, Any] = {}
    async with made.parts.connect(caller) as connection:
        for name, more in (("sessions_history", {"includeTools": True}), ("chat.history", {})):
            said[name] = await connection.call(name, sessionKey=KEY, limit=100, **more)
        said["a small page"] = await connection.call("sessions_history", sessionKey=KEY, maxBytes=100)
        said["sessions_list"] = await connection.call("sessions_list", messageLimit=20)
        said["sessions.list"] = await connection.call("sessions.list", messageLimit=20)
        said["sessions.preview"] = await connection.call("sessions.preview", keys=[KEY], limit=50, maxChars=2000)
        said["sessions_search"] = await connection.call("sessions_search", query=" or ")
        sent = await connection.call("chat.send", sessionKey=KEY, message=TEXT)
        said["agent.wait"] = await connection.call("agent.wait", runId=sent["runId"])
        said["sessions_send"] = await connection.call("sessions_send", sessionKey=KEY, message=TEXT)
        await connection.call("sessions.subscribe")
        await connection.call("sessions.messages.subscribe", key=KEY)
        await made.owner.say(KEY, TEXT)
        await connection.call("ping")
        said["events"] = connection.events
        assert {event["method"] for event in connection.events} == KINDS
    answer = await made.http(caller, includeTools="1", limit="100")
    assert isinstance(answer, HttpResponse)
    texts = {name: json.dumps(value) for name, value in said.items()} | {"HTTP": answer.body.decode()}
    return texts | {"SSE": await follow(made, caller, lambda text: "event: history" in text)}


async def test_no_method_event_or_route_shows_a_token_a_secret(tmp_path: Path) -> None:
    async with open_daemon_with_secrets(tmp_path) as made:
        shown = {name: secrets_in(text) for name, text in (await read_everything(made, await made.token())).items()}
        assert {name: secrets for name, secrets in shown.items() if secrets} == {}


async def test_the_owner_and_the_file_have_the_unmasked_text(tmp_path: Path) -> None:
    async with open_daemon_with_secrets(tmp_path) as made:
        [path] = (tmp_path / "store/agents/main/sessions").glob("*.jsonl")
        before = path.read_bytes()
        caller = await made.token()
        async with made.parts.connect(caller) as connection:
            page = await connection.call("chat.history", sessionKey=KEY)
            assert (page["contentRedacted"], secrets_in(json.dumps(page))) == (True, [])
            await connection.call("sessions_search", query=" or ")
        assert path.read_bytes() == before
        page = await made.owner.call("chat.history", sessionKey=KEY)
        assert (page["contentRedacted"], page["messages"][0]["content"]) == (False, TEXT)
        shown = {name: secrets_in(text) for name, text in (await read_everything(made, OWNER)).items()}
        # A page that is too small for the message contains a note instead.
        assert {name for name, secrets in shown.items() if len(secrets) < len(SECRETS)} == {"a small page"}


async def test_the_configuration_turns_masking_off(tmp_path: Path) -> None:
    async with open_daemon_with_secrets(tmp_path, redact=False) as made:
        shown = {name: secrets_in(text) for name, text in (await read_everything(made, await made.token())).items()}
        assert {name for name, secrets in shown.items() if len(secrets) < len(SECRETS)} == {"a small page"}
        async with made.parts.connect(await made.token()) as connection:
            assert (await connection.call("sessions_history", sessionKey=KEY))["contentRedacted"] is False


async def test_the_error_output_of_a_failing_program_is_masked(tmp_path: Path) -> None:
    async with open_daemon_with_secrets(tmp_path) as made:
        async with made.parts.connect(await made.token(agentId="failing")) as connection:
            await made.owner.call("sessions.create", key="agent:failing:main")
            sent = await connection.call("chat.send", sessionKey="agent:failing:main", message=TEXT)
            ended = await connection.call("agent.wait", runId=sent["runId"])
            answer = await connection.call("sessions_send", sessionKey="agent:failing:main", message=TEXT)
        assert (ended["status"], answer["status"]) == ("error", "error")
        assert secrets_in(json.dumps([ended, answer])) == []
        assert len(secrets_in((await made.owner.call("agent.wait", runId=sent["runId"]))["error"])) == len(SECRETS)


@pytest.mark.parametrize("secret", spread(SECRETS, 1))
async def test_no_shortened_text_shows_part_of_a_secret(tmp_path: Path, secret: str) -> None:
    """Titles, previews and snippets are masked before they are shortened, wherever the cut falls."""
    written = f"password={secret}" if secret == PASSWORD else secret
    keys = [f"agent:main:cut{place}" for place in range(44)]
    async with open_daemon_with_secrets(tmp_path) as made:
        for place, key in enumerate(keys):
            text = "w " * (place * 3 // 2) + f"found {written} behind " + "v " * 100
            await made.owner.call("sessions.create", key=key)
            await made.owner.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])
    async with reopen_with_full_visibility(tmp_path) as (parts, caller), parts.connect(caller) as connection:
        listed = await connection.call("sessions.list", limit=200)
        assert len(listed["sessions"]) > len(keys)
        previews = [
            await connection.call("sessions.preview", keys=keys, maxChars=chars)
            for chars in range(20, 400, amount(7, 23))
        ]
        found = [
            await connection.call("sessions_search", query=query, limit=200)
            for query in ("found", "behind", "w w w", "v v v")
        ]
        assert all(len(one["matches"]) > 38 for one in found)
        assert [one for one in (listed, *previews, *found) if secret in secrets_in(json.dumps(one))] == []


@asynccontextmanager
async def reopen_with_full_visibility(folder: Path) -> AsyncIterator[tuple[InProcessDaemon, Caller]]:
    """The same store again, with a token that sees all sessions of its agent."""
    config = CONFIG.format(redact="true").replace("redact = true", 'redact = true\nvisibility = "agent"')
    async with in_process_daemon(folder, config) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list", "read"], agentId="main")
        yield parts, parts.services.tokens.caller(minted["token"])


async def test_a_search_for_a_secret_finds_nothing_of_it(tmp_path: Path) -> None:
    """Otherwise a token could find a secret letter by letter."""
    async with open_daemon_with_secrets(tmp_path) as made, made.parts.connect(await made.token()) as connection:
        for secret in SECRETS:
            for end in range(8, len(secret), 3):
                for query in (secret[:end], secret[end - 8 : end]):
                    found = await connection.call("sessions_search", query=query)
                    assert found["matches"] == [], query
        assert (await made.owner.call("sessions_search", query=TOKEN[10:30]))["matches"] != []
        assert (await connection.call("sessions_search", query="please"))["contentRedacted"] is True


@check_each("size", [1, 3, 7, 16, 1000])
async def test_a_secret_streamed_in_pieces_is_masked_once_it_is_recognizable(tmp_path: Path, size: int) -> None:
    async with (
        open_daemon_with_secrets(tmp_path) as made,
        made.parts.connect(await made.token(agentId="attached")) as agent,
    ):
        await agent.call("agents.attach", agentId="attached")
        key = "agent:attached:main"
        sent = await made.owner.call("chat.send", sessionKey=key, message="tell")
        run_id = (await agent.event("run.start"))["runId"]
        assert run_id == sent["runId"]
        watching = await made.token(agentId="attached")
        async with made.parts.connect(watching) as token, made.parts.connect() as owner:
            for connection in (token, owner):
                await connection.call("sessions.messages.subscribe", key=key)
            for at in range(0, len(TEXT), size):
                await agent.call("run.event", runId=run_id, type="delta", text=TEXT[at : at + size])
            await agent.call(
                "run.event", runId=run_id, type="tool", phase="end", toolCallId="1", name="sh", result={"out": TEXT}
            )
            heard = [await deltas(connection) for connection in (token, owner)]
        assert heard[1][0] == TEXT
        # A token is recognized from its 24th character on; nothing beyond that was shown.
        assert [secret for secret in SECRETS if secret[:24] in heard[0][0] or secret[20:] in heard[0][0]] == []
        assert (secrets_in(heard[0][1]), len(secrets_in(heard[1][1]))) == ([], len(SECRETS))


async def deltas(connection: Connection) -> tuple[str, str]:
    """The live text of the deltas, joined, and the tool events as text."""
    await connection.call("ping")
    text = "".join(event["params"]["text"] for event in connection.events if event["method"] == "session.delta")
    tools = json.dumps([event for event in connection.events if event["method"] == "session.tool"])
    return text, tools


@check_each("name", ["sessions_spawn", "sessions\\u005fspawn", "Sessions-Spawn", "mcp__x__sessions_spawn"])
async def test_the_content_of_an_attachment_reaches_no_transcript(tmp_path: Path, name: str) -> None:
    """However the name of the call is spelled or escaped."""
    arguments = '{"attachments":[{"name":"a","content":"inside"}]}'
    call = f'{{"type":"toolCall","id":"1","name":"{name}","arguments":{arguments}}}'
    message = f'{{"role":"assistant","content":[{call}]}}'
    async with open_daemon_with_secrets(tmp_path) as made:
        params = f'{{"sessionKey":"{KEY}","messages":[{message}]}}'
        text = f'{{"jsonrpc":"2.0","id":"raw","method":"chat.inject","params":{params}}}\n'
        await made.owner._stream.send_all(text.encode())
        assert "result" in await made.owner.receive()
        [path] = (tmp_path / "store/agents/main/sessions").glob("*.jsonl")
        last = path.read_text().splitlines()[-1]
        assert ("inside" in last, "__REDACTED__" in last) == (False, True)


def test_a_private_key_stays_masked_however_long_it_is() -> None:
    lines = [f"{number:064x}" for number in range(60)]
    key = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----", "and on"])
    before, shown = "", ""
    for line in key.splitlines(keepends=True):
        shown += mask_next(before, line)
        before += line
    assert [line for line in lines if line[-40:] in shown] == []
    assert shown.endswith("and on")


@given(st.text(st.sampled_from("ab sk-=:password\n"), max_size=80), st.integers(0, 80))
def test_text_without_secrets_is_unchanged_by_masking_in_pieces(text: str, at: int) -> None:
    whole = mask_next("", text)
    if whole == text:
        assert mask_next("", text[:at]) + mask_next(text[:at], text[at:]) == text
    assert MASK in whole or whole == text or "…" in whole
