"""Cursors of a search: a place in the order of its matches, as text. Pure.

A cursor is signed together with the search that it is of, so that one of another search is recognized, and so is one
that was changed. The state of a search is nowhere else: any daemon of the store can go on with it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hmac import compare_digest

import msgspec

from sessiond.errors import InvalidParams
from sessiond.sessions.found import Place

Sign = Callable[[str], str]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[int | str]).decode


def cursor_text(place: Place, about: str, sign: Sign) -> str:
    """The cursor for a place in the search that `about` describes."""
    body = urlsafe_b64encode(_encode(place)).decode().rstrip("=")
    return f"{body}.{sign(_join(about, body))}"


def read_cursor(text: str, about: str, sign: Sign) -> Place:
    """The place in a cursor. InvalidParams for a malformed one, and for one of another search."""
    body, _, tag = text.partition(".")
    try:
        if compare_digest(tag.encode(), sign(_join(about, body)).encode()):
            place: Place = tuple(_decode(urlsafe_b64decode(body + "=" * (-len(body) % 4))))  # type: ignore[assignment]
            return place  # as it was signed
    except ValueError:  # half a surrogate, which has no bytes
        pass
    raise InvalidParams(
        "$.cursor is not a cursor of this search; use nextCursor with the parameters of the page that it came with, or"
        " begin again without a cursor",
        field="$.cursor",
        code="cursor_invalid",
    )


def _join(about: str, body: str) -> str:
    return f"{about}\0{body}"
