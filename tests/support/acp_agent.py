"""An agent that speaks ACP by hand, well or badly: what a prompt says decides. Standard library only, to start quickly.

Options are words: resume, load, close, fork, image (capabilities), null (results), noise, silent, mute, auth,
version=N, modes, behind (replays behind its answer), refuses=METHOD,
one=ID (every session has this id). A prompt is words, too: the first names what to
do (the functions below), the others are its arguments. Sessions lie in `native.json` in their folder, so that another
process can go on with them. Every frame that it gets is a line of `frames.jsonl` in its working folder.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from typing import Any

OPTIONS = dict(word.partition("=")[::2] for word in sys.argv[1:])
CHOICES = [("yes", "allow_once"), ("always", "allow_always"), ("no", "reject_once"), ("never", "reject_always")]
log = open("frames.jsonl", "a", buffering=1)  # noqa: SIM115 - open until the process ends
folders: dict[str, str] = {}
servers: dict[str, Any] = {}
asked = begun = 0


def put(frame: Any) -> None:
    sys.stdout.write(json.dumps(frame) + "\n")
    sys.stdout.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    log.write(line)
    frame: dict[str, Any] = json.loads(line)
    return frame


def answer(request: dict[str, Any], result: Any) -> None:
    put({"jsonrpc": "2.0", "id": request["id"], "result": result})


def refuse(request: dict[str, Any], code: int, message: str) -> None:
    put({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})


def update(session: str, of: str, /, **fields: Any) -> None:
    params = {"sessionId": session, "update": {"sessionUpdate": of, **fields}}
    put({"jsonrpc": "2.0", "method": "session/update", "params": params})


def say(session: str, text: str, message_id: str | None = None, kind: str = "agent_message_chunk") -> None:
    more = {} if message_id is None else {"messageId": message_id}
    update(session, kind, content={"type": "text", "text": text}, **more)


def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request of the agent, whose ids begin at 0. A cancel meanwhile is noted in `cancelled`."""
    global asked
    mine, asked = asked, asked + 1
    put({"jsonrpc": "2.0", "id": mine, "method": method, "params": params})
    while True:
        frame = read()
        if "method" not in frame and frame["id"] == mine:
            return frame
        if frame.get("method") == "session/cancel":
            cancelled.append(frame["params"]["sessionId"])


cancelled: list[str] = []


def permission(
    session: str, call: dict[str, Any], kinds: str = "allow_once,allow_always,reject_once,reject_always"
) -> str:
    options = [{"optionId": name, "name": name, "kind": kind} for name, kind in CHOICES if kind in kinds.split(",")]
    given = ask("session/request_permission", {"sessionId": session, "toolCall": call, "options": options})
    outcome: dict[str, Any] = given["result"]["outcome"]
    return str(outcome.get("optionId", outcome["outcome"]))


def history(folder: str) -> dict[str, list[str]]:
    try:
        with open(os.path.join(folder, "native.json")) as file:
            known: dict[str, list[str]] = json.load(file)
            return known
    except FileNotFoundError:
        return {}


def remember(session: str, text: str) -> None:
    known = history(folders[session])
    known.setdefault(session, []).append(text)
    with open(os.path.join(folders[session], "native.json"), "w") as file:
        json.dump(known, file)


def tool(session: str, call: str = "c1", kind: str = "execute", status: str = "completed") -> None:
    update(session, "tool_call", toolCallId=call, title="Run it", kind=kind, status="pending")
    update(session, "tool_call_update", toolCallId=call, status="in_progress", rawInput={"command": "ls"})
    content = [{"type": "content", "content": {"type": "text", "text": "a b"}}]
    update(session, "tool_call_update", toolCallId=call, status=status, content=content)


def prompt(request: dict[str, Any]) -> None:
    session = request["params"]["sessionId"]
    blocks = request["params"]["prompt"]
    text = blocks[0]["text"].rpartition("\n\n")[2]
    remember(session, text)
    word, *words = text.split()
    stop = ACTS[word](session, *words) if word in ACTS else say(session, text)
    if word == "blocks":
        say(session, ",".join(block["type"] for block in blocks))
    if stop == "late":
        answer(request, {"stopReason": "end_turn"})
        say(session, "after the answer")
    elif stop == "without newline":
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"stopReason": "end_turn"}}))
        sys.stdout.flush()
        sys.exit(0)
    elif stop == "shut":
        os.close(0)  # before the answer, so that the next message finds it closed
        answer(request, {"stopReason": "end_turn"})
        time.sleep(600)  # noqa: TID251 - as an agent that hangs
    elif stop == "failed":
        refuse(request, -32603, "it failed")
    else:
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15} if word == "usage" else None
        answer(request, {"stopReason": stop or "end_turn", **({"usage": usage} if usage else {})})


def act_messages(session: str) -> None:
    say(session, "hm", None, "agent_thought_chunk")
    for text, message_id in (("one ", "a"), ("two", "a"), ("three", "b"), ("four", None)):
        say(session, text, message_id)


def begin_asking(session: str, call: str, kinds: str = "allow_once,reject_once") -> int:
    """Ask for permission and wait for nothing; the id of the request."""
    global asked
    mine, asked = asked, asked + 1
    options = [{"optionId": name, "name": f"Say {name}", "kind": kind} for name, kind in CHOICES if kind in kinds]
    known = {"toolCallId": call, "title": f"Run {call}", "kind": "execute", "rawInput": {"command": f"do {call}"}}
    params = {"sessionId": session, "toolCall": known, "options": options}
    put({"jsonrpc": "2.0", "id": mine, "method": "session/request_permission", "params": params})
    return mine


def tell_answer(given: dict[str, Any]) -> str:
    """An answer to a permission request or a form: what was chosen, and why."""
    result = given["result"]
    outcome = result.get("outcome") or {"outcome": result["action"], "optionId": result.get("content")}
    chosen = outcome.get("optionId") or outcome["outcome"]
    return f"{chosen if isinstance(chosen, str) else json.dumps(chosen)} ({result['_meta']['sessiond']['reason']})"


def act_ask(session: str, call: str = "c1", kinds: str = "allow_once,reject_once") -> None:
    """Ask, and say what was answered and why."""
    mine = begin_asking(session, call, kinds)
    while "method" in (frame := read()) or frame["id"] != mine:
        pass
    say(session, tell_answer(frame))


def act_both(session: str) -> None:
    """Two questions at once, and updates while they are open; says the answers as they come."""
    waiting = {begin_asking(session, call): call for call in ("c1", "c2")}
    say(session, "meanwhile. ")
    while waiting:
        frame = read()
        if "method" not in frame:
            say(session, f"{waiting.pop(frame['id'])} {tell_answer(frame)}. ")


def act_takeback(session: str) -> None:
    """Ask, and take that back."""
    mine = begin_asking(session, "c1")
    put({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": mine}})
    while "method" in (frame := read()):
        pass
    say(session, tell_answer(frame))


def act_leave(session: str) -> None:
    """End the turn with a question open."""
    begin_asking(session, "c1")
    say(session, "I do not wait")


def act_fall(session: str) -> None:
    """Die with a question open."""
    begin_asking(session, "c1")
    say(session, "oh")
    while not os.path.exists("fall"):
        time.sleep(0.01)  # noqa: TID251 - until the test has seen the question
    os._exit(3)


def act_form(session: str, *schema: str) -> None:
    """A form with the given schema, and what came of it."""
    params = {
        "sessionId": session,
        "mode": "form",
        "message": "Which one?",
        "requestedSchema": json.loads(" ".join(schema)),
    }
    say(session, tell_answer(ask("elicitation/create", params)))


def act_order(session: str) -> None:
    """Permission before the call itself, then a call that ends, then text."""
    chosen = permission(session, {"toolCallId": "c1", "title": "Run it", "kind": "execute"})
    tool(session, status="completed" if chosen in ("yes", "always") else "failed")
    say(session, f"chose {chosen}")


def act_permission(session: str, kind: str = "execute", kinds: str = "allow_once,reject_once") -> None:
    """Permission after the call was begun."""
    update(session, "tool_call", toolCallId="c1", title="Run it", kind=kind, status="pending", rawInput={"x": 1})
    say(session, permission(session, {"toolCallId": "c1"}, kinds))


def act_silently(session: str) -> None:
    """Permission for a call of which it says nothing more if that is denied, and the end alone if it is allowed."""
    call = {"toolCallId": "c1", "title": "Run it", "kind": "execute", "content": [{"type": "content", "content": {}}]}
    if permission(session, call) in ("yes", "always"):
        update(session, "tool_call_update", toolCallId="c1", status="completed", content=[])
    say(session, "done")


def act_unknown(session: str) -> None:
    update(session, "plan", entries=[{"content": "first", "priority": "high", "status": "pending"}])
    for _ in range(2):
        update(session, "available_commands_update", availableCommands=[{"name": "x", "description": "y"}])
    update(session, "of_the_future", anything=[1, 2])
    update("another session", "agent_message_chunk", content={"type": "text", "text": "not for us"})
    say(session, "done")


def act_malformed(session: str) -> None:
    for wrong in (None, 7, [], {}, {"sessionUpdate": 7}, {"sessionUpdate": "tool_call"}, {"sessionUpdate": "../x"}):
        put({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": wrong}})
    update(session, "agent_message_chunk", content="text")
    update(session, "usage_update", used="many")
    put({"jsonrpc": "2.0", "method": "session/update"})
    put([1])
    put({"jsonrpc": "2.0", "id": 4711, "result": None})
    print("not JSON \x1b[1m")
    say(session, "done")


def act_usage(session: str, cost: str, currency: str = "USD") -> None:
    update(session, "usage_update", used=120, size=1000, cost={"amount": float(cost), "currency": currency})
    say(session, "done")


def act_open(session: str) -> None:
    """A call that never ends, and one that is only updated."""
    update(session, "tool_call", toolCallId="open", title="Left open")
    update(
        session,
        "tool_call_update",
        toolCallId="only updated",
        title="T",
        name="own_name",
        status="completed",
        rawOutput={"x": 1},
    )


def act_stop(session: str, reason: str) -> str:
    say(session, "stopped")
    return reason


def act_wait(session: str, last: str = "cancelled") -> str:
    """Until it is cancelled; `deaf` never obeys, `asks` asks for permission meanwhile."""
    say(session, "waiting")
    if last == "asks":
        say(session, " " + permission(session, {"toolCallId": "c1", "title": "t", "kind": "read"}))
    while session not in cancelled:
        frame = read()
        if frame.get("method") == "session/cancel":
            cancelled.append(frame["params"]["sessionId"])
    cancelled.remove(session)
    if last == "deaf":
        time.sleep(600)  # noqa: TID251 - as an agent that hangs
    if last == "asks":
        say(session, " " + permission(session, {"toolCallId": "c2", "title": "t", "kind": "read"}))
    say(session, " and over")
    return "end_turn" if last == "ends" else "cancelled"


def act_die(session: str) -> None:
    say(session, "before the end")
    print("Traceback: the last words", file=sys.stderr, flush=True)
    os._exit(3)


def act_half(session: str) -> None:
    say(session, "before the end")
    sys.stdout.write('{"jsonrpc": "2.0", "method": "session/up')
    sys.stdout.flush()
    os._exit(0)


def act_flood(session: str, megabytes: str, kind: str = "agent_message_chunk") -> None:
    text = "0123456789 " * 90
    line = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    frame = (
        json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": line}})
        + "\n"
    )
    for _ in range(int(float(megabytes) * 1e6) // len(frame)):
        sys.stdout.write(frame)


def act_requests(session: str) -> None:
    said = []
    for method in ("fs/read_text_file", "terminal/create", "elicitation/create", "what/ever"):
        given = ask(method, {"sessionId": session, "path": "/etc/passwd", "message": "Which one?", "mode": "form"})
        said.append(str(given["error"]["code"]) if "error" in given else given["result"]["action"])
    say(session, ",".join(said))


def act_token(session: str) -> None:
    (server,) = servers[session]
    env = {one["name"]: one["value"] for one in server["env"]}
    with open(env["SESSIOND_TOKEN_FILE"]) as file:
        say(session, f"token {file.read()} of {os.path.basename(env['SESSIOND_TOKEN_FILE'])}")


tool_servers: dict[str, Any] = {}


def act_mcp(session: str, tool: str, *arguments: str) -> None:
    """Call a tool of the session's MCP server, which is started once and kept."""
    if session not in tool_servers:
        (server,) = servers[session]
        env = {one["name"]: one["value"] for one in server["env"]}
        words = [server["command"], *server["args"]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        tool_servers[session] = subprocess.Popen(words, env={**os.environ, **env}, text=True, **pipes)
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by-hand", "version": "1"}}
        ask_server(session, "initialize", hello)
    result = ask_server(session, "tools/call", {"name": tool, "arguments": json.loads(" ".join(arguments) or "{}")})
    say(session, result["content"][0]["text"])


def ask_server(session: str, method: str, params: dict[str, Any]) -> Any:
    server = tool_servers[session]
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}) + "\n")
    server.stdin.flush()
    while (answer := json.loads(server.stdout.readline())).get("id") != method:
        pass
    return answer["result"]


def act_files(session: str) -> None:
    """The files that came with the task."""
    found = glob.glob(os.path.join(folders[session], ".openclaw", "attachments", "*", "*.txt"))
    say(session, "files: " + ", ".join(f"{os.path.basename(path)} {open(path).read()}" for path in sorted(found)))  # noqa: SIM115


def act_shell(session: str, environment: str) -> None:
    """A command of the agent that asks sessiond for the sessions, with the environment of the agent or with little."""
    python = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sessiond.cli import main; main()"
    (server,) = servers[session]
    words = [server["command"], "-I", "-S", "-c", python, server["args"][-2], "list"]
    env = None if environment == "whole" else {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    say(session, f"{done.returncode}: {done.stdout}{done.stderr}")


def act_big(session: str, size: str) -> None:
    say(session, "w " * (int(size) // 2))


ACTS: dict[str, Any] = {
    **{name.removeprefix("act_"): act for name, act in globals().items() if name.startswith("act_")},
    "late": lambda session: say(session, "in time") or "late",
    "tool": tool,
    "nonewline": lambda session: say(session, "the end") or "without newline",
    "shut": lambda session: say(session, "last words") or "shut",
    "failed": lambda session: say(session, "so far") or "failed",
    "blocks": lambda session: None,
    "known": lambda session: say(session, " | ".join(history(folders[session])[session])),
    "chosen": lambda session: say(session, ",".join(chosen.get((session, key), "-") for key in ("model", "effort"))),
    "pid": lambda session: say(session, str(os.getpid())),
    "environ": lambda session: say(
        session, " ".join(sorted(name for name in os.environ if name.startswith("SESSIOND_")))
    ),
    "sleep": lambda session, ms: time.sleep(float(ms) / 1000),  # noqa: TID251
}


chosen: dict[tuple[str, str], str] = {}


def choices(session: str) -> list[dict[str, Any]]:
    """The models, in two groups, and the levels of thinking."""
    models = [{"group": name, "name": name, "options": [{"value": name, "name": name}]} for name in ("m-1", "m-2")]
    levels = [{"value": name, "name": name} for name in ("low", "high")]
    kinds = [("model", "model", "m-1", models), ("effort", "thought_level", "low", levels)]
    return [
        {"id": key, "name": key, "category": category, "type": "select", "options": options}
        | {"currentValue": chosen.get((session, key), first)}
        for key, category, first, options in kinds
    ]


def choose(request: dict[str, Any]) -> None:
    params = request["params"]
    chosen[params["sessionId"], params["configId"]] = params["value"]
    answer(request, {"configOptions": choices(params["sessionId"])})


def open_session(request: dict[str, Any]) -> None:
    params, method = request["params"], request["method"]
    folder = params["cwd"]
    if method == "session/new":
        global begun
        session, begun = OPTIONS["one"] if "one" in OPTIONS else f"native-{os.getpid()}-{begun}", begun + 1
    else:
        session = params["sessionId"]
        if session not in history(folder):
            refuse(request, -32603, f"no session {session}")
            return
    if method == "session/fork":
        original, session = session, f"copy-{os.getpid()}-{len(folders)}"
        folders[session] = folder
        for text in history(folder)[original]:
            remember(session, text)
    folders[session], servers[session] = folder, params["mcpServers"]
    if method == "session/load" and "behind" not in OPTIONS:
        replay(session)
    options: dict[str, Any] = {"configOptions": choices(session)}
    if "modes" in OPTIONS:
        modes = [{"id": mode, "name": mode} for mode in ("auto", "default", "read-only")]
        options["modes"] = {"currentModeId": "auto", "availableModes": modes}
    is_new = method in ("session/new", "session/fork")
    opened = {"sessionId": session, **options} if is_new else options
    answer(request, None if "null" in OPTIONS and not is_new else opened)
    if method == "session/load" and "behind" in OPTIONS:
        replay(session, pause_s=0.01)


def replay(session: str, pause_s: float = 0.0) -> None:
    for text in history(folders[session])[session]:
        time.sleep(pause_s)  # noqa: TID251 - as an agent that takes its time
        say(session, text, None, "user_message_chunk")
        say(session, f"replayed {text}")
        tool(session, f"old {text}")


def main() -> None:
    if "noise" in OPTIONS:
        print("Welcome!\n{not json\n[1, 2]\n\n\x00\xff")
    while True:
        request = read()
        match request.get("method"):
            case "initialize" if "silent" in OPTIONS:
                pass
            case method if method is not None and method == OPTIONS.get("refuses"):
                refuse(
                    request,
                    -32000 if "auth" in OPTIONS else -32603,
                    "Authentication required" if "auth" in OPTIONS else "no",
                )
            case "initialize":
                able = {name: {} for name in ("resume", "close", "fork") if name in OPTIONS}
                capabilities = {"loadSession": "load" in OPTIONS, "sessionCapabilities": able}
                capabilities["promptCapabilities"] = {"image": "image" in OPTIONS}
                answer(
                    request,
                    {
                        "protocolVersion": json.loads(OPTIONS.get("version", "1")),
                        "agentCapabilities": capabilities,
                        "authMethods": [{"id": "api-key", "name": "Key"}],
                        "agentInfo": {"name": "by-hand", "version": "1"},
                    },
                )
            case "authenticate":
                OPTIONS.pop("auth", None)
                OPTIONS.pop("refuses", None)
                answer(request, {})
            case "session/new" if "mute" in OPTIONS:
                pass
            case "session/new" | "session/load" | "session/resume" | "session/fork":
                open_session(request)
            case "session/set_config_option":
                choose(request)
            case "session/prompt":
                prompt(request)
            case "session/set_mode":
                answer(request, {})
            case "session/close":
                folders.pop(request["params"]["sessionId"])
                answer(request, {})
            case "session/cancel" | None:
                pass  # it came when the turn was over, or is an answer for which nobody waits any more
            case _:
                refuse(request, -32601, "no such method")


main()
