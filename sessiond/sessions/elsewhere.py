"""Sessions on other machines by their address there, `mars/agent:ops:main`, and those of ours that write to them.

Reads the catalog and creates nothing. What of another machine is shown here is a source (sources.md); this is about the
way there, which needs no copy. Source: machines.md, "Sending".
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.machine_names import MACHINE_NAME
from sessiond.model.keys import normalize_key, rest_of
from sessiond.policy.visibility import Sight
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Catalog, Session

_ADDRESS = re.compile(rf"((?ai:{MACHINE_NAME.pattern}))/(.*)", re.DOTALL)


class SessionAddress(msgspec.Struct, frozen=True):
    """A session as it is named on `machine`: by key, alias, id or label."""

    machine: str
    there: str

    @property
    def text(self) -> str:
        """`mars/agent:ops:main`, as runs for it have it as their target."""
        return f"{self.machine}/{self.there}"


def address_of(text: str, field: str = "$.sessionKey") -> SessionAddress | None:
    """The address in what a caller wrote, None where it names a session here. InvalidParams for half an address."""
    found = _ADDRESS.fullmatch(text.strip()) if "/" in text else None
    if found is None:
        return None
    machine, there = found[1].lower(), found[2].strip()
    if not there:
        raise InvalidParams(f"{field} names no session on {machine}: write {machine}/main, for example", field=field)
    # Keys are in lower case everywhere; ids of programs and labels need not be.
    return SessionAddress(machine, normalize_key(there, field) if there[:6].lower() == "agent:" else there)


def is_shown(catalog: Catalog, address: SessionAddress) -> bool:
    """Whether that machine's own session is shown here (a replica)."""
    return address.text in catalog.by_key or catalog.foreign.find_alias(address.text.lower()) is not None


def by_key_there(catalog: Catalog, address: SessionAddress) -> SessionAddress:
    """The address with the key, where it has the id of a session that is shown here. Which one `main` is there, only
    that machine knows.
    """
    shown = catalog.foreign.find_alias(address.text.lower())
    if shown is None or shown.session_id.lower() != address.there.lower():
        return address
    return SessionAddress(address.machine, rest_of(shown.key))


def session_for(catalog: Catalog, address: SessionAddress, field: str = "$.sessionKey") -> tuple[str, Session | None]:
    """The key of our session that writes to the address, and the session if there is one. InvalidParams."""
    first = normalize_key(f"agent:{address.machine}:{address.text}", field)
    # Two addresses may differ in case only, and somebody may have made a session with that very key.
    second = normalize_key(f"{first}:{blake2b(address.text.encode(), digest_size=4).hexdigest()}", field)
    for key in (first, second):
        found = catalog.by_key.get(key)
        if found is not None and found.entry.target == address.text:
            return key, found
    return (first if first not in catalog.by_key else second), None


def no_such_machine(name: str, sight: Sight, machines: list[str], text: str, missing: list[str]) -> NotFound:
    """The error for a machine that is not in the configuration, or to which the caller may not send.

    `missing` are settings without which it may send to none; it gets these in the same words whether there is one.
    """
    known = [machine for machine in machines if sight.reaches_agent(machine)]
    if not known and not sight.unlimited:
        if sight.barred or not machines:  # it is a machine itself, or there is nothing to reach
            return no_such_session(text)
        return NotFound(
            f"no session {quote(text.strip())} to which an agent here may send; for other machines the configuration of"
            f" sessiond has to say {', '.join(missing)}; then: sessiond config reload",
            code="machine_not_reached",
            settings=missing,
        )
    there_are = f"the machines are {', '.join(known)}" if known else "[[link.peers]] of the configuration names none"
    return NotFound(f"no machine {quote(name)}; {there_are}", code="machine_not_found", machines=known)
