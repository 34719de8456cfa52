"""The prompt of an editor as a message to a session: content blocks -> text and files. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from sessiond.acp.refusals import is_writable

Block = dict[str, Any]

# What a message may have in all. The daemon takes 16 MiB; the rest is for its frame.
MAX_MESSAGE_BYTES = 15 * 1024 * 1024
FILES_ONLY = "See the attached files."
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TYPES = "text, image, resource_link and resource"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class BadPrompt(Exception):
    """A prompt that cannot be sent; the message is a sentence for the client."""


class PromptMessage:
    """The text of a message and its files, as `chat.send` takes them."""

    __slots__ = ("attachments", "text")

    def __init__(self, text: str, attachments: list[dict[str, str]]) -> None:
        self.text, self.attachments = text, attachments


def read_prompt(blocks: Any) -> PromptMessage:
    """The message in the content blocks of a prompt. BadPrompt.

    Links and embedded resources are named where they stand; the text of the latter follows at the end.
    """
    if not isinstance(blocks, list):
        raise BadPrompt("`prompt` is to be a list of content blocks")
    reader = _PromptReader()
    for index, block in enumerate(blocks):
        reader.take(block, f"prompt[{index}]")
    return reader.message()


class _PromptReader:
    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ends_with_text = False
        self._contexts: list[str] = []
        self._files: list[dict[str, str]] = []

    def take(self, block: Any, where: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            self._add(_text_in(block, "text", where), is_text=True)
        elif kind == "resource_link":
            self._add_link(_text_in(block, "name", where), _text_in(block, "uri", where))
        elif kind == "resource":
            self._add_resource(block.get("resource"), f"{where}.resource")
        elif kind == "image":
            mime = _text_in(block, "mimeType", where)
            name = f"image-{len(self._files) + 1}.{_EXTENSIONS.get(mime, 'bin')}"
            self._add_file(name, _text_in(block, "data", where), mime)
        else:
            raise BadPrompt(f"`{where}` is no content block that is taken here: they are {_TYPES}")

    def message(self) -> PromptMessage:
        text = "".join(self._pieces)
        text = "\n\n".join([*([text] if text.strip() else []), *self._contexts])
        if not text.strip():
            if not self._files:
                raise BadPrompt("the prompt is empty")
            text = FILES_ONLY
        if sum(len(one.encode()) for one in (text, *(file["content"] for file in self._files))) > MAX_MESSAGE_BYTES:
            raise BadPrompt(f"the prompt is longer than {MAX_MESSAGE_BYTES // (1024 * 1024)} MiB; name files by links")
        return PromptMessage(text, self._files)

    def _add(self, more: str, *, is_text: bool) -> None:
        """Add a piece. Two texts are two lines; a link stands in its line, apart from words and other links."""
        if not more:
            return
        if self._pieces:
            self._pieces.append(self._separator(more, is_text=is_text))
        self._pieces.append(more)
        self._ends_with_text = is_text

    def _separator(self, more: str, *, is_text: bool) -> str:
        last = self._pieces[-1][-1]
        if is_text and self._ends_with_text:
            return "" if last.isspace() else "\n"
        touches = more[0].isalnum() if is_text else last.isalnum() or not self._ends_with_text
        return " " if touches else ""

    def _add_link(self, name: str, uri: str) -> None:
        self._add(f"[@{name}]({uri})", is_text=False)

    def _add_resource(self, resource: Any, where: str) -> None:
        if not isinstance(resource, dict):
            raise BadPrompt(f"`{where}` is missing or no object")
        uri = _text_in(resource, "uri", where)
        name = unquote(uri.rstrip("/").rpartition("/")[2]) or uri
        self._add_link(name, uri)
        if "text" in resource:
            text = _text_in(resource, "text", where)
            self._contexts.append(f'<context ref="{uri}">\n{text}\n</context>')
            return
        safe = _NOT_IN_A_NAME.sub("-", name)[-64:].strip("-.") or "file"
        mime = resource.get("mimeType")
        content = _text_in(resource, "blob", where)
        self._add_file(f"{len(self._files) + 1}-{safe}", content, mime if isinstance(mime, str) else "")

    def _add_file(self, name: str, content: str, mime: str) -> None:
        file = {"name": name, "content": content, "encoding": "base64"}
        self._files.append({**file, "mimeType": mime} if mime else file)


def _text_in(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise BadPrompt(f"`{where}.{name}` is missing or no text")
    if not is_writable(value):
        raise BadPrompt(f"`{where}.{name}` has half a character (a lone surrogate)")
    return value
