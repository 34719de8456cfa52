"""The subjects and names on the server: `x.<from>.<to>.<kind>.<token>`. Text only.

Source: machines.md, "Names on the server".
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal

import msgspec

from sessiond.machine_names import MACHINE_NAME

# What is kept in the stream: live ranges of transcripts, rows of sessions, commands, their answers, and ranges that
# were asked for.
Kind = Literal["rec", "row", "cmd", "ans", "ask"]
KINDS: Final[tuple[Kind, ...]] = ("rec", "row", "cmd", "ans", "ask")
# What is kept nowhere: a question to a machine that is there now, and the reply.
REQUEST: Final = "req"
REPLY: Final = "rep"

# What no consumer would ever take is not kept.
STREAM_SUBJECTS: Final = tuple(f"x.*.*.{kind}.*" for kind in KINDS)
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Address(msgspec.Struct, frozen=True):
    """Where a message was found. It proves nothing: the server's permissions can be got around, its administrator may
    publish anything. Only the signature inside counts.
    """

    sender: str
    receiver: str
    kind: Kind
    token: str


def token_of(identity: str) -> str:
    """A digest that stands for a text where the server reads it. As the last word of a subject: of a session's id (rec,
    ask), of a command's (cmd, ans), or of `rows`.
    """
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def stream_subject(sender: str, receiver: str, kind: Kind, identity: str) -> str:
    return f"x.{sender}.{receiver}.{kind}.{token_of(identity)}"


def parse_subject(subject: str) -> Address | None:
    """The parts of a subject of the stream; None for any other text."""
    match subject.split("."):
        case ["x", sender, receiver, kind, token] if (
            MACHINE_NAME.fullmatch(sender)
            and MACHINE_NAME.fullmatch(receiver)
            and kind in KINDS
            and _TOKEN.fullmatch(token)
        ):
            return Address(sender, receiver, kind, token)
    return None


def ask_subject(machine: str, sender: str) -> str:
    """Where a machine is asked by another, without the stream; also how one sees whether it is there."""
    return f"ask.{machine}.{sender}"


def inbox_of(machine: str) -> str:
    """What the subjects begin with on which a machine gets what is for it alone."""
    return f"_INBOX.{machine}"


def answer_subjects(machine: str) -> str:
    """Where others answer what a machine has asked: below its inbox, with two words more, so never where a consumer
    delivers.
    """
    return f"{inbox_of(machine)}.*.*"


def deliver_subject(machine: str, kind: Kind) -> str:
    return f"{inbox_of(machine)}.{kind}"


def consumer_name(machine: str, kind: Kind) -> str:
    return f"{machine}-{kind}"


def consumer_filter(machine: str, kind: Kind) -> str:
    return f"x.*.{machine}.{kind}.*"
