"""What `doctor` says of one thing. Whoever has something to say needs this, and not the checks of the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Level = Literal["ok", "warn", "error"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`thing` is a path below the store, or `store`; `what` a few words; `hint` what to do about it."""

    level: Annotated[Level, Meta(description="The severity.")]
    thing: Annotated[str, Meta(description="What it is about: a path below the store, or `store`.")]
    what: Annotated[str, Meta(description="What is wrong, in a few words.")]
    hint: Annotated[str | None, Meta(description="What to do about it.")] = None


# None wherever a check may be interrupted.
Findings = Iterator[Finding | None]
