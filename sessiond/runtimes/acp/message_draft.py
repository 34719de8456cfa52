"""Put an assistant message together from chunks, and split what is too long for one record. Sans-io."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sessiond.runtimes.output import Event, MessageOutput

# A piece of a message that is split ends at white space, if there is any in its last so many characters.
_WORD_CHARS = 200
# Arguments of over this size are left out of a message that would be too long otherwise; then those of over the next.
_LONG_ARGUMENTS_BYTES = (16 * 1024, 1024, 128)


class AcpMessageDraft:
    """The message that is being said. A chunk with another `messageId` begins the next one.

    A thought without an id belongs to what is said after it. `split` counts the messages that were too long.
    """

    def __init__(self, provider: str, max_bytes: int) -> None:
        self._fixed = {"api": "acp", "provider": provider}
        self._max_bytes = max_bytes
        self._blocks: list[dict[str, Any]] = []
        # The text of the last block, in pieces: appending to one string would copy it with each chunk.
        self._parts: list[str] = []
        self._bytes = 0
        # A message may have been begun without an id.
        self._message_id: str | None = None
        self._is_begun = False
        # Thoughts without an id, until it is known whether the next text is of the same message.
        self._held: list[str] = []
        self._held_chars = 0
        self.split = 0

    def add_text(self, said: str, message_id: str | None) -> Iterator[Event]:
        """Add text of a message."""
        yield from self._begin(message_id)
        yield from self._add("text", said)

    def add_thought(self, said: str, message_id: str | None) -> Iterator[Event]:
        """Add text of thinking."""
        if message_id is not None:
            yield from self._begin(message_id)
        elif self._is_begun and self._message_id is not None and self._held_chars < self._max_bytes:
            self._held.append(said)
            self._held_chars += len(said)
            return
        yield from self._release()
        yield from self._add("thinking", said)

    def add_message_block(self, block: dict[str, Any], message_id: str | None) -> Iterator[Event]:
        """Add a whole block of a message."""
        yield from self._begin(message_id)
        yield from self.add_block(block)

    def add_block(self, block: dict[str, Any]) -> Iterator[Event]:
        """Add a whole block to whatever is being said. It may change until the message is flushed."""
        yield from self._release()
        size = _size(block)
        if self._blocks and self._bytes + size > self._max_bytes:
            yield from self._write()
        self._close_text()
        self._blocks.append(block)
        self._bytes += size

    def flush(self, stop_reason: str | None = None) -> Iterator[Event]:
        """The message so far, if it has any blocks; the next chunk begins another."""
        yield from self._release()
        yield from self._write(stop_reason)

    def _write(self, stop_reason: str | None = None) -> Iterator[Event]:
        self._close_text()
        # Copies: a call may still change, but not in a message that was written.
        blocks = [dict(block) for block in self._blocks if block.get(block["type"]) != ""]
        self._blocks, self._bytes, self._is_begun, self._message_id = [], 0, False, None
        if not blocks:
            return
        has_calls = any(block["type"] == "toolCall" for block in blocks)
        message: dict[str, Any] = {"role": "assistant", "content": blocks, **self._fixed}
        message["stopReason"] = stop_reason or ("toolUse" if has_calls else "stop")
        for most_bytes in _LONG_ARGUMENTS_BYTES:
            if _size(message) <= self._max_bytes:
                break
            message["content"] = [_shorten(block, most_bytes) for block in blocks]
        yield MessageOutput(message)

    def _begin(self, message_id: str | None) -> Iterator[Event]:
        if self._is_begun and self._message_id != message_id:
            yield from self._write()
        self._message_id, self._is_begun = message_id, True
        yield from self._release()

    def _release(self) -> Iterator[Event]:
        held, self._held, self._held_chars = self._held, [], 0
        for said in held:
            yield from self._add("thinking", said)

    def _add(self, kind: str, said: str) -> Iterator[Event]:
        while said:
            size = _size(said)
            if self._bytes + size <= self._max_bytes:
                break
            piece = _cut(said, size, self._max_bytes - self._bytes)
            self._append(kind, piece, _size(piece))
            said = said[len(piece) :]
            begun = self._message_id, self._is_begun  # what comes next is of the same message
            yield from self._write()
            self._message_id, self._is_begun = begun
            self.split += 1
        if said:
            self._append(kind, said, size)

    def _append(self, kind: str, said: str, size: int) -> None:
        if not self._blocks or self._blocks[-1]["type"] != kind:
            self._close_text()
            self._blocks.append({"type": kind, kind: ""})
        self._parts.append(said)
        self._bytes += size

    def _close_text(self) -> None:
        if self._parts:
            last = self._blocks[-1]
            last[last["type"]] += "".join(self._parts)
            self._parts = []


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _cut(said: str, size: int, room: int) -> str:
    """The beginning of `said` (`size` bytes as JSON) that needs at most `room` bytes; up to white space if it can."""
    chars = max(1, room * len(said) // size)
    while chars > 1 and _size(said[:chars]) > room:
        chars = chars * 3 // 4
    spaces = [said.rfind(space, max(1, chars - _WORD_CHARS), chars) for space in (" ", "\n")]
    return said[: max(spaces) + 1] if max(spaces) > 0 else said[:chars]


def _shorten(block: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """A tool call without arguments that are too long to be kept."""
    size = _size(block.get("arguments"))
    if block["type"] != "toolCall" or size <= most_bytes:
        return block
    return {**block, "arguments": {"omitted": f"{size} bytes, too long for limits.maxRecordBytes"}}
