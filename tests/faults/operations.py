"""The operations that a daemon performs while a fault is injected, and what must hold after each of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.faulty_daemons import FaultyDaemon
from faults.scenes import MAIN, CallOutcome, Scene, idle
from faults.transcripts import transcripts

CONFIG = """
[tools.sessions]
visibility = "all"
[tools.agentToAgent]
enabled = true
allow = ["*"]
[session.agentToAgent]
maxPingPongTurns = 1
[agents.defaults.subagents]
announce = "reply"
wakeRequester = %s
[delivery]
retrySeconds = [0.05]
[channels.telegram]
command = ["sh", "-c", "echo {deliveryId} >> %s"]
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
subagents = { allowAgents = ["*"] }
[[agents.list]]
id = "bob"
runtime = { type = "echo" }
"""
BOB, OLD = "agent:bob:telegram:group:7", "agent:main:old"

Act = Callable[[Scene], None]
Later = Callable[["Scene", FaultyDaemon, int | None], None]


def _do_nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """`prepare` creates the store that every fault point starts with. `act` runs with the fault. `check` looks at the
    restarted daemon, and gets the mark of a power cut if there was one. `may_leave`: allowed findings of doctor.
    """

    name: str
    act: Act
    check: Later = _do_nothing
    prepare: Callable[[FaultyDaemon], None] = _do_nothing
    wakes: bool = False
    may_leave: tuple[str, ...] = ()


def configuration(operation: Operation, folder: Path) -> str:
    return CONFIG % ("true" if operation.wakes else "false", folder / "delivered")


def _prepare_sessions(daemon: FaultyDaemon) -> None:
    """Every store starts with two sessions with messages, and one in the archive."""
    for key in (MAIN, BOB, OLD):
        daemon.call("sessions.create", key=key)
        daemon.reply(key, f"before {key}")
    daemon.call("sessions.delete", key=OLD)
    daemon.wait_for(lambda: idle(daemon), "the first messages do not end")


def _create(scene: Scene) -> None:
    scene.ask("create", "sessions.create", key="agent:main:new", label="new")
    scene.ask("create and send", "sessions.create", key="agent:main:more", message="first", text="first")
    scene.settle()


def _check_create(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    keys = {row["key"] for row in daemon.rows()}
    for what, key in (("create", "agent:main:new"), ("create and send", "agent:main:more")):
        if scene.outcome(what, mark) == "done":
            assert key in keys, f"{key} was created and is gone"
        if scene.outcome(what, mark) == "refused" and what == "create":
            assert key not in keys, f"{key} was refused and exists"


def _inject(scene: Scene) -> None:
    for number in range(3):
        scene.inject(f"injected {number}")
    # Pipelined, so that several are in one commit.
    with suppress(OSError, ValueError), scene.daemon.connect() as wire:
        texts = [f"together {number}" for number in range(3)]
        for number, text in enumerate(texts):
            params = {"sessionKey": MAIN, "messages": [{"role": "user", "content": text}]}
            wire.send({"jsonrpc": "2.0", "id": number, "method": "chat.inject", "params": params})
            scene.texts[text] = text
        for _ in texts:
            answer = wire.receive()
            outcome: Any = "done" if "result" in answer else "refused"
            if outcome == "refused":
                scene.check_refusal(texts[answer["id"]], answer["error"])
            scene.outcomes.append(CallOutcome(texts[answer["id"]], outcome, answer, scene.daemon.control.counter))


def _send(scene: Scene) -> None:
    scene.send("hello")
    scene.send("hello again", attachments=[{"name": "a.txt", "content": "for this message"}])
    scene.settle()


def _talk(scene: Scene) -> None:
    with suppress(OSError, ValueError), scene.daemon.connect() as wire:
        wire.call("initialize", protocol=1, client={"name": "test", "version": "1"}, token=_token(scene.daemon))
        asked = {"sessionKey": BOB, "message": "please", "timeoutSeconds": 1}
        scene.ask("talk", "sessions_send", wire=wire, text="please", **asked)
    scene.settle()


def _token(daemon: FaultyDaemon) -> str:
    return (daemon.extra_files / "token").read_text()


def _prepare_token(daemon: FaultyDaemon) -> None:
    _prepare_sessions(daemon)
    token = daemon.call("tokens.mint", sessionKey=MAIN, scopes=["send", "read", "list", "spawn"])["token"]
    (daemon.extra_files / "token").write_text(token)


FILES = [{"name": "a", "content": "x" * 100}, {"name": "b", "content": "y" * 100}]


def _spawn(cleanup: str) -> Act:
    def act(scene: Scene) -> None:
        asked = {"task": "do it", "attachments": FILES, "cleanup": cleanup}
        scene.ask("spawn", "sessions_spawn", text="do it", **asked)
        scene.settle()

    return act


def _check_spawn(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    [live] = [one for one in transcripts(daemon.store) if one.key == MAIN and not one.archived]
    announcements = [record for record in live.records if _provenance(record) == "subagent_announce"]
    sources = [record["message"]["provenance"]["sourceSessionKey"] for record in announcements]
    assert len(sources) == len(set(sources)), f"announced twice: {sources}"
    if scene.outcome("spawn", mark) == "done":
        assert scene.result("spawn")["childSessionKey"] in sources, "an accepted child was never announced"


def _provenance(record: dict[str, Any]) -> Any:
    return record.get("message", {}).get("provenance", {}).get("sourceTool")


def _reset(scene: Scene) -> None:
    scene.inject("before the reset")
    scene.ask("reset", "sessions.reset", key=MAIN)
    scene.inject("after the reset")


def _check_reset(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    texts = json.dumps(daemon.call("chat.history", sessionKey=MAIN, limit=100)["messages"])
    if scene.outcome("reset", mark) == "done":
        assert "before the reset" not in texts, "the reset was acknowledged and is undone"
    if scene.outcome("reset", mark) == "refused":
        assert f"before {MAIN}" in texts, "the reset was refused and is done"


def _delete(scene: Scene) -> None:
    scene.ask("delete", "sessions.delete", key=BOB)


def _check_delete(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    there = any(row["key"] == BOB for row in daemon.rows())
    assert scene.outcome("delete", mark) != "done" or not there, "the delete was acknowledged and is undone"
    assert scene.outcome("delete", mark) != "refused" or there, "the delete was refused and is done"


def _patch(scene: Scene) -> None:
    scene.ask("patch", "sessions.patch", key=MAIN, label="one")
    scene.ask("patch again", "sessions.patch", key=MAIN, label="two")


def _check_patch(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    [row] = [row for row in daemon.rows() if row["key"] == "main"]
    first, second = scene.outcome("patch", mark), scene.outcome("patch again", mark)
    label = row.get("label")
    assert second != "done" or label == "two", f"the label is {label!r}"
    assert second != "refused" or label != "two", "the second label was refused and is there"
    assert first != "done" or label in ("one", "two"), f"the label is {label!r}"
    assert first != "refused" or label != "one", "the first label was refused and is there"


def _prepare_import(daemon: FaultyDaemon) -> None:
    _prepare_sessions(daemon)
    for number, key in enumerate(("agent:main:brought", "agent:main:main")):
        sessions = daemon.extra_files / "openclaw" / "agents" / "main" / "sessions"
        sessions.mkdir(parents=True, exist_ok=True)
        header = {"type": "session", "version": 3, "id": f"brought-{number}", "timestamp": "2026-01-02T03:04:05.000Z"}
        message = {"type": "message", "id": f"b{number}", "message": {"role": "user", "content": f"brought {number}"}}
        records = [header, message | {"timestamp": "2026-01-02T03:04:06.000Z", "parentId": None}]
        (sessions / f"brought-{number}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
        index = sessions / "sessions.json"
        known = json.loads(index.read_text()) if index.exists() else {}
        index.write_text(json.dumps(known | {key: {"sessionId": f"brought-{number}"}}))


def _import(scene: Scene) -> None:
    scene.ask("import", "sessions.import", path=str(scene.daemon.extra_files / "openclaw"))


def _check_import(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    rows = [row for row in daemon.rows() if row["key"] == "agent:main:brought"]
    assert scene.outcome("import", mark) != "done" or rows, "what was imported is gone"
    again = daemon.call("sessions.import", path=str(daemon.extra_files / "openclaw"))
    taken = sorted(path.stem for path in (daemon.store / "agents/main/sessions").rglob("brought-*.jsonl"))
    assert taken == ["brought-0", "brought-1"], f"a second import brings {again}; there are {taken}"


def _prune(scene: Scene) -> None:
    scene.ask("prune", "sessions.prune", olderThanMs=0, confirm=True)


def _check_prune(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    left = [path.stem for path in (daemon.store / "agents/main/sessions/archive").glob("*.jsonl")]
    if scene.outcome("prune", mark) == "done":
        again = [one["sessionId"] for one in scene.result("prune")["removed"] if one["sessionId"] in left]
        assert not again, f"what was pruned is there again: {again}"


def _tokens(scene: Scene) -> None:
    minted = scene.ask("mint", "tokens.mint", scopes=["read"])
    if minted:
        scene.ask("revoke", "tokens.revoke", token=minted["token"])


def _check_tokens(scene: Scene, daemon: FaultyDaemon, mark: int | None) -> None:
    if scene.outcome("mint") != "done":
        return
    with daemon.connect() as wire:
        hello = {"protocol": 1, "client": {"name": "t", "version": "1"}, "token": scene.result("mint")["token"]}
        is_valid = "result" in wire.ask("initialize", **hello)
    assert scene.outcome("revoke", mark) != "done" or not is_valid, "a revoked token is valid again"
    assert scene.outcome("revoke", mark) != "refused" or is_valid, "the revoke was refused and the token is revoked"
    # A second revoke is final.
    daemon.call("tokens.revoke", token=scene.result("mint")["token"])
    with daemon.connect() as wire:
        assert "error" in wire.ask("initialize", **hello), "a token outlived a second revoke"


def _stop(scene: Scene) -> None:
    scene.inject("the last")
    scene.daemon.process.send_signal(signal.SIGTERM)
    scene.daemon.process.wait()


def _prepare_damage(daemon: FaultyDaemon) -> None:
    _prepare_sessions(daemon)
    # The index is saved when the daemon stops.
    daemon.stop()
    (daemon.store / "agents/main/sessions/sessions.json").chmod(0o644)
    # One entry is damaged. An index that is no JSON would be kept under another name, and doctor would report that.
    (daemon.store / "agents/bob/sessions/sessions.json").write_text('{"agent:bob:x": {"sessionId": 5, "file": {}}}')
    daemon.start()


def _doctor(scene: Scene) -> None:
    scene.ask("doctor", "daemon.doctor", fix=True)


OPERATIONS = (
    Operation("create", _create, _check_create, _prepare_sessions),
    Operation("inject", _inject, prepare=_prepare_sessions),
    Operation("send", _send, prepare=_prepare_sessions),
    Operation("talk", _talk, prepare=_prepare_token),
    Operation("spawn", _spawn("keep"), _check_spawn, _prepare_sessions),
    Operation("spawn, deleted", _spawn("delete"), _check_spawn, _prepare_sessions),
    Operation("spawn, waking", _spawn("keep"), _check_spawn, _prepare_sessions, wakes=True),
    Operation(
        "reset", _reset, _check_reset, _prepare_sessions, may_leave=("transcripts are of one key, the newest counts",)
    ),
    Operation("delete", _delete, _check_delete, _prepare_sessions),
    Operation("patch", _patch, _check_patch, _prepare_sessions),
    Operation("import", _import, _check_import, _prepare_import),
    Operation("prune", _prune, _check_prune, _prepare_sessions),
    Operation("tokens", _tokens, _check_tokens, _prepare_sessions),
    Operation("stop", _stop, prepare=_prepare_sessions),
    Operation("doctor", _doctor, prepare=_prepare_damage),
)
