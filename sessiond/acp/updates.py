"""What happens in a session as updates for an editor. Sans-io: takes the daemon's events, returns `session/update`s.

Text that came live is not sent again with its message. What was said by this editor itself is not sent to it.
"""

from __future__ import annotations

import re
from typing import Any

from sessiond.acp.tool_calls import ToolCalls, Update
from sessiond.client.wire import Event

# Of so many messages it is known that they were shown; of the newest ones which text, because they may grow.
MAX_SHOWN, MAX_GROWING = 4096, 16
# Clients made with asyncio read lines of up to 64 KiB unless told otherwise; a character takes up to six bytes.
MAX_CHUNK_CHARS = 10_000

# What the daemon puts in place of a secret, or of its middle.
_MASK = re.compile(r"…|\*\*\*")

_Fragment = tuple[str, str]  # kind of a block, and its text


class SessionUpdates:
    """The updates of one session. `own_key` is the key of the caller's own session, None for the owner."""

    def __init__(self, own_key: str | None = None) -> None:
        self._own_key = own_key
        self._calls = ToolCalls()
        self._own_prompts: list[str] = []
        self._shown: dict[str, tuple[int, list[_Fragment] | None]] = {}  # message id: hash, and its blocks
        self._replays = True
        # Live text is shown from the beginning of a message on, and only while none of it was missed.
        self._missed_some = True
        self._run_id: object = None
        # What came live and no message has said yet, by the kind of block that will. In pieces, because a text that
        # grows by each would be copied each time.
        self._streamed: dict[str, list[str]] = {"text": [], "thinking": []}
        self._count = 0  # of messages that came live; part of their ids

    def acp_id_of(self, call_id: str) -> str:
        """The id under which the editor knows a tool call."""
        return self._calls.acp_id_of(call_id)

    def end_replay(self) -> None:
        """What is to come was not there when the session was opened."""
        self._replays = False

    def expect_prompt(self, text: str) -> None:
        """The next message with this text is the editor's own."""
        self._own_prompts.append(text)

    def forget_prompt(self, text: str) -> None:
        if text in self._own_prompts:
            self._own_prompts.remove(text)

    def note_gap(self) -> None:
        """Live events may have been missed: the connection was lost."""
        self._missed_some = True

    def end_turn(self) -> list[Update]:
        """What is left to be said when a run has ended."""
        self._forget_live()
        return self._calls.fail_open()

    def take(self, event: Event) -> list[Update]:
        """The updates for an event of the session."""
        if event.name == "session.message":
            message = event.get("message")
            return self._take_message(event, message) if isinstance(message, dict) else []
        if event.name == "session.resync" or event.get("omitted") is not None:
            self._missed_some = True
            return []
        if self._missed_some or self._replays:
            return []
        if event.name == "session.tool":
            return self._calls.take_live(event.params)
        if event.name in ("session.delta", "session.thought"):
            return self._take_piece(event, is_thought=event.name == "session.thought")
        return []

    def _take_piece(self, event: Event, *, is_thought: bool) -> list[Update]:
        text = event.get("text")
        if not isinstance(text, str) or not text:
            return []
        if event.get("runId") != self._run_id:
            self._run_id = event.get("runId")
            self._forget_live()
        self._streamed["thinking" if is_thought else "text"].append(text)
        kind = "agent_thought_chunk" if is_thought else "agent_message_chunk"
        return _chunks(kind, _text_block(text), self._live_id())

    def _forget_live(self) -> None:
        for pieces in self._streamed.values():
            pieces.clear()

    def _new_of_live(self, kind: str, text: str) -> str:
        """What of a block that is stored now did not come live."""
        pieces = self._streamed[kind]
        if not pieces:
            return text
        rest, later = _after_live("".join(pieces), text)
        self._streamed[kind] = [later] if later else []
        return rest

    def _live_id(self) -> str:
        return f"{self._run_id}.{self._count}"

    def _take_message(self, event: Event, message: dict[str, Any]) -> list[Update]:
        if not self._replays:
            self._missed_some = False
        message_id, role = _text(event.get("messageId")), message.get("role")
        blocks = _blocks_of(message)
        had = self._note_shown(message_id, message, blocks)
        if had is None:
            return []
        if role in ("toolResult", "tool"):
            content = [shown for block in blocks if (shown := _content(block))]
            return self._calls.take_result(message, content, again=bool(had))
        if role == "assistant":
            return self._take_answer(message_id, blocks, had)
        updates = self.end_turn() if role == "user" and not had else []
        if role == "user" and self._is_own(message, blocks):
            return updates
        if role == "bashExecution":
            return [*updates, *self._take_command(message_id, message)]
        said = _meta_of(message)
        for block, before in zip(blocks, [*had, *[("", "")] * len(blocks)], strict=False):
            if said_now := _content(_new_part(block, before)):
                updates += [{**chunk, **said} for chunk in _chunks("user_message_chunk", said_now, message_id)]
        return updates

    def _take_answer(self, message_id: str, blocks: list[dict[str, Any]], had: list[_Fragment]) -> list[Update]:
        shown_id = self._live_id() if any(self._streamed.values()) else message_id
        updates: list[Update] = []
        for block, before in zip(blocks, [*had, *[("", "")] * len(blocks)], strict=False):
            if block.get("type") == "toolCall":
                updates += self._calls.take_call(block) if before[0] != "toolCall" else []
                continue
            new = _new_part(block, before)
            if new.get("type") == "thinking":
                thought = self._new_of_live("thinking", _text(new.get("thinking")))
                updates += _chunks("agent_thought_chunk", _text_block(thought), shown_id) if thought else []
                continue
            if new.get("type") == "text":
                new = _text_block(self._new_of_live("text", _text(new.get("text"))))
            content = _content(new)
            updates += _chunks("agent_message_chunk", content, shown_id) if content else []
        self._count += 1
        return updates

    def _take_command(self, message_id: str, message: dict[str, Any]) -> list[Update]:
        """A command that a person ran in the program, with its output."""
        block = {"id": message_id, "name": "bash", "arguments": {"command": _text(message.get("command"))}}
        failed = message.get("exitCode") not in (0, None)
        output = _text(message.get("output"))
        result = {"toolCallId": message_id, "isError": failed}
        content = [_text_block(output)] if output else []
        return [*self._calls.take_call(block), *self._calls.take_result(result, content)]

    def _is_own(self, message: dict[str, Any], blocks: list[dict[str, Any]]) -> bool:
        """Whether the editor has sent this message."""
        if not self._own_prompts:
            return False
        text = "".join(_text(block.get("text")) for block in blocks if block.get("type") == "text")
        if _sender_of(message) not in (None, self._own_key):
            return False
        is_masked = self._own_key is not None
        own = next((one for one in self._own_prompts if one == text or (is_masked and _fits_masked(text, one))), None)
        if own is None:
            return False
        self._own_prompts.remove(own)
        return True

    def _note_shown(
        self, message_id: str, message: dict[str, Any], blocks: list[dict[str, Any]]
    ) -> list[_Fragment] | None:
        """The blocks of the message that were shown before, none if it is new; None if there is nothing new in it."""
        if not message_id:
            return []
        fragments = [_fragment(block) for block in blocks]
        digest = hash((str(message.get("role")), *fragments))
        known = self._shown.pop(message_id, None)
        self._shown[message_id] = digest, fragments
        if known is None:
            self._forget_old()
            return []
        if known[0] == digest or known[1] is None:
            return None
        return known[1]

    def _forget_old(self) -> None:
        if len(self._shown) > MAX_SHOWN:
            del self._shown[next(iter(self._shown))]
        if len(self._shown) > MAX_GROWING:
            # Newest last, and all but the newest MAX_GROWING were seen to already.
            old = list(reversed(self._shown))[MAX_GROWING]
            self._shown[old] = self._shown[old][0], None


def _blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [_text_block(content)]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _fragment(block: dict[str, Any]) -> _Fragment:
    kind = _text(block.get("type"))
    return kind, _text(block.get("thinking" if kind == "thinking" else "data" if kind == "image" else "text"))


def _new_part(block: dict[str, Any], before: _Fragment) -> dict[str, Any]:
    """The block, without what of its text was shown."""
    kind, text = _fragment(block)
    if kind != before[0] or kind not in ("text", "thinking", "image"):
        return block
    rest = text.removeprefix(before[1])
    return {**block, "data" if kind == "image" else kind: rest}


def _after_live(streamed: str, text: str) -> tuple[str, str]:
    """What of `text` was not in the live text, and what of the live text is of a later block."""
    for live, said in ((streamed, text), (streamed.strip(), text.strip())):
        if said.startswith(live):
            return said[len(live) :], ""
        if live.startswith(said):
            return "", live[len(said) :].lstrip()
    return text, ""  # the live text was another one: what is stored counts


def _content(block: dict[str, Any]) -> Update | None:
    """A block of a message as content of the protocol; None for what has none."""
    if block.get("type") == "text" and _text(block.get("text")):
        return _text_block(block["text"])
    data, mime = block.get("data"), block.get("mimeType")
    if block.get("type") == "image" and _text(data) and isinstance(mime, str):
        return {"type": "image", "data": data, "mimeType": mime}
    return None


def _fits_masked(shown: str, sent: str) -> bool:
    """Whether `shown` may be `sent` with its secrets masked, as callers with a token get it."""
    pieces, place = _MASK.split(shown), 0
    if len(pieces) == 1:
        return False
    for piece in pieces:
        place = sent.find(piece, place) + len(piece)
        if place < len(piece):
            return False
    return sent.startswith(pieces[0]) and sent.endswith(pieces[-1])


def _sender_of(message: dict[str, Any]) -> str | None:
    """The key of the session that said a message, if it was one."""
    provenance = message.get("provenance")
    sender = provenance.get("sourceSessionKey") if isinstance(provenance, dict) else None
    return sender if isinstance(sender, str) else None


def _meta_of(message: dict[str, Any]) -> Update:
    sender = _sender_of(message)
    return {"_meta": {"fromSessionKey": sender}} if sender is not None else {}


def _chunks(kind: str, content: Update, message_id: str) -> list[Update]:
    """The chunks of a message with that content; long texts in several."""
    text = _text(content.get("text"))
    pieces = [content]
    if len(text) > MAX_CHUNK_CHARS:
        places = range(0, len(text), MAX_CHUNK_CHARS)
        pieces = [_text_block(text[place : place + MAX_CHUNK_CHARS]) for place in places]
    named = {"messageId": message_id} if message_id else {}
    return [{"sessionUpdate": kind, "content": piece, **named} for piece in pieces]


def _text_block(text: str) -> Update:
    return {"type": "text", "text": text}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
