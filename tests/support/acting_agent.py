"""An agent that does what its message says, for `exec` with `input = "json"` and `output = "jsonl"`.

`say TEXT` writes it word by word; `work` thinks, uses a tool and reports; `hold` writes a word, then waits until
somebody opens the FIFO `gate` of its folder for writing; `fail` ends badly; anything else is answered with how it came:
text, folder and files. Standard library only.
"""

import json
import os
import sys

run = json.load(sys.stdin)
order, _, rest = run["message"].partition(" ")


def put(**line):
    print(json.dumps(line), flush=True)


def delta(text):
    put(type="delta", text=text)


def text(words):
    return {"type": "text", "text": words}


if order == "say":
    for word in rest.split(" "):
        delta(word + " ")
    usage = {"input": 10, "output": 2, "totalTokens": 12, "cost": {"total": 0.5}}
    put(role="assistant", content=[text(rest)], usage=usage)
elif order == "work":
    call = {"type": "toolCall", "id": "call_1", "name": "bash", "arguments": {"command": "ls"}}
    delta("I look. ")
    put(type="tool", phase="start", toolCallId="call_1", name="bash", args={"command": "ls"})
    put(role="assistant", content=[{"type": "thinking", "thinking": "where?"}, text("I look."), call])
    put(type="tool", phase="end", toolCallId="call_1", name="bash", result="a.txt")
    put(role="toolResult", toolCallId="call_1", toolName="bash", content=[text("a.txt")], isError=False)
    delta("One file.")
    put(role="assistant", content=[text("One file.")])
elif order == "hold":
    delta("Wait. ")
    with open("gate") as gate:
        gate.read()
    put(role="assistant", content=[text("Wait. Done.")])
elif order == "fail":
    sys.exit("the agent is out of order")
else:
    files = run.get("attachments") or {}
    names = [file["name"] for file in files.get("files", ())]
    put(role="assistant", content=[text(json.dumps([run["message"], os.path.basename(os.getcwd()), names]))])
