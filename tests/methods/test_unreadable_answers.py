"""A run whose agent's answer cannot be read ends: with unreadable text replaced, or with an error that says why."""

from __future__ import annotations

from pathlib import Path

import trio
from support.in_process import in_process_daemon
from support.in_process_agents import attached_agents_config
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import spread

ANSWERS = {
    "a lone surrogate": (rb'"result":{"reply":"cut \ud83d"}', ("ok", "cut \ufffd", None)),
    "one in a message": (
        rb'"result":{"messages":[{"role":"assistant","content":"cut \ud83d"}]}',
        ("ok", "cut \ufffd", None),
    ),
    "no number": (b'"result":{"reply":"x","usage":{"input":NaN}}', ("error", None, "cannot be read")),
    "no end": (b'"result":{"reply":"x","usage":{"input":Infinity}}', ("error", None, "cannot be read")),
    "no object": (b'"result":{"reply"}', ("error", None, "cannot be read")),
    "no UTF-8": (b'"result":{"reply":"\xff"}', ("error", None, "cannot be read")),
    "too deep": (b'"result":' + b"[" * 2000 + b"]" * 2000, ("error", None, "cannot be read")),
    "both": (b'"result":1,"error":{}', ("error", None, "cannot be read")),
    "long": (b'"result":{"reply":"' + b"x" * 400_000 + b'","usage":NaN}', ("error", None, "cannot be read")),
}


@check_each("answer", spread(list(ANSWERS), 5))
@check_each("shape", [b"%s", b"[%s]"])
async def test_a_run_whose_answer_cannot_be_read_ends(tmp_path: Path, answer: str, shape: bytes) -> None:
    text, (status, reply, error) = ANSWERS[answer]
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        there.connect() as agent,
        there.connect() as owner,
    ):
        await agent.call("agents.attach", agentId="alice")
        accepted = await owner.call("chat.send", sessionKey="agent:alice:main", message="hello")
        started = await agent.receive()
        assert started["method"] == "run.start"
        frame = b'{"jsonrpc":"2.0","id":%d,%s}' % (started["id"], text)
        await agent.write(shape % frame + b"\n")
        with trio.fail_after(PATIENCE_S):
            ended = await owner.call("agent.wait", runId=accepted["runId"], timeoutMs=PATIENCE_S * 1000)
        assert (ended["status"], ended.get("reply")) == (status, reply)
        assert error is None or error in ended["error"]
        # The next run works as usual.
        accepted = await owner.call("chat.send", sessionKey="agent:alice:main", message="again")
        message = await agent.receive()
        while isinstance(message, list) or message.get("method") != "run.start":
            refused = message[0] if isinstance(message, list) else message
            assert refused["error"]["code"] in (-32700, -32600)
            message = await agent.receive()
        await agent.write(b'{"jsonrpc":"2.0","id":%d,"result":{"reply":"fine"}}\n' % message["id"])
        assert (await owner.call("agent.wait", runId=accepted["runId"], timeoutMs=PATIENCE_S * 1000))["reply"] == "fine"
