"""One rule says what a machine may be called, wherever a name of one is read."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.config.link import MachineName
from sessiond.errors import InvalidParams
from sessiond.link.envelope import Envelopes, PeerMessage
from sessiond.link.identity import new_identity
from sessiond.link.subjects import parse_subject
from sessiond.machine_names import MACHINE_NAME
from sessiond.methods.params import check_machine
from sessiond.model.entry import Target
from sessiond.model.keys import machine_of
from sessiond.sessions.elsewhere import address_of

IDENTITY = new_identity()
NAMES = st.one_of(
    st.from_regex(MACHINE_NAME, fullmatch=True),
    st.text("az09-_./: \nAZ\u0130\u017f\u212a\u0660", max_size=34),
    st.text(max_size=34),
)


def is_read(read: Any, text: Any) -> bool:
    try:
        read(text)
    except (msgspec.ValidationError, InvalidParams, UnicodeError, ValueError):
        return False
    return True


def is_opened(name: str) -> bool:
    """Whether an envelope from and to a machine of that name is one."""
    envelopes = Envelopes(name, IDENTITY, {name: IDENTITY.public})
    return isinstance(envelopes.open(envelopes.pack(name, "rec", "session"), "rec"), PeerMessage)


@given(NAMES)
@example("-rf")
@example("a" * 32)
@example("a" * 33)
@example("a\n")
@example("")
def test_a_name_is_one_everywhere_or_nowhere(name: str) -> None:
    is_name = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name) is not None
    address = address_of(f"{name}/agent:ops:main")
    found = parse_subject(f"x.{name}.{name}.rec.{'0' * 32}")
    read = {
        "configuration": is_read(lambda text: msgspec.convert(text, MachineName), name),
        "parameter": is_read(lambda text: check_machine(text, "machine"), name),
        "key": machine_of(f"{name}/agent:ops:main") == name,
        "address": address is not None and address.machine == name,
        "subject": found is not None and (found.sender, found.receiver) == (name, name),
        "envelope": is_read(lambda text: None if is_opened(text) else int("no"), name),
    }
    assert set(read.values()) == {is_name}, read
    # Of a target the end of the name is only where its first slash is.
    if "/" not in name:
        assert is_read(lambda text: msgspec.convert(text, Target), f"{name}/ops") is is_name


@pytest.mark.parametrize("letter", ["\u212a", "\u017f", "\u0130"])
def test_letters_that_become_others_in_lower_case_name_no_machine(letter: str) -> None:
    assert address_of(f"{letter}/main") is None
    assert address_of("MARS/main") is not None
