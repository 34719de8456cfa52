"""Stands in for Claude Code in tests: `claude -p --output-format=stream-json [--resume=ID [--fork-session]]`.

Keeps its sessions where Claude Code keeps them and in its format, prints its lines, and knows only the sessions of its
own folder. It says what it knows: `knows: <every message so far>`. A message with `FAIL` in it ends in an error.
"""

import json
import os
import re
import sys
import uuid

HOME = os.environ["HOME"]
TIMESTAMP = "2026-11-22T16:19:48.696Z"
folder = os.path.join(HOME, ".claude", "projects", re.sub(r"[^A-Za-z0-9]", "-", os.getcwd()))
given = sys.stdin.read()
# Without what sessiond says about a message before its text.
text = given.rpartition("\n\n")[2]
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
resumed = options.get("resume")
with open(os.path.join(HOME, "calls"), "a") as log:
    log.write(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "text": given}) + "\n")


def put(**line):
    print(json.dumps(line), flush=True)


def path_of(session):
    return os.path.join(folder, session + ".jsonl")


if resumed is not None and not os.path.exists(path_of(resumed)):
    error = "No conversation found with session ID: " + resumed
    print(error, file=sys.stderr)
    put(type="result", subtype="error_during_execution", is_error=True, session_id=str(uuid.uuid4()), errors=[error])
    sys.exit(1)
session = resumed if resumed is not None and "fork-session" not in options else str(uuid.uuid4())
lines = []
if resumed is not None:
    with open(path_of(resumed)) as file:
        lines = [json.loads(line) for line in file]
put(type="system", subtype="init", cwd=os.getcwd(), session_id=session, tools=[], model="claude-sonnet-4-5")


def record(kind, message):
    common = {"isSidechain": False, "uuid": str(uuid.uuid4()), "timestamp": TIMESTAMP, "userType": "external"}
    more = {"cwd": os.getcwd(), "sessionId": session, "version": "2.1.329", "type": kind, "message": message}
    return {"parentUuid": lines[-1]["uuid"] if lines else None, **common, **more}


begun = len(lines) if session == resumed else 0
lines.append(record("user", {"role": "user", "content": text}))
known = " | ".join(line["message"]["content"].strip() for line in lines if line["type"] == "user")
answer = {"id": "msg_" + uuid.uuid4().hex, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
answer["content"] = [{"type": "text", "text": "knows: " + known}]
answer["usage"] = {"input_tokens": 60, "output_tokens": 7}
if "FAIL" not in text:
    lines.append(record("assistant", answer))
os.makedirs(folder, exist_ok=True)
with open(path_of(session), "a") as file:
    file.writelines(json.dumps({**line, "sessionId": session}) + "\n" for line in lines[begun:])
if "FAIL" in text:
    put(type="result", subtype="error_during_execution", is_error=True, session_id=session, errors=["it failed"])
    sys.exit(1)
put(type="assistant", message=answer, parent_tool_use_id=None, session_id=session, timestamp=TIMESTAMP)
put(
    type="result",
    subtype="success",
    is_error=False,
    result="knows: " + known,
    session_id=session,
    usage=answer["usage"],
)
