"""The body of every message between machines: signed by its sender, and with `encrypt` readable by its receiver alone.

Bytes in, a `PeerMessage` or a `Refused` out; no bytes raise an error. Knows no server and no clock. A message may come
twice, late or never: whoever uses one has to see to that. Source: machines.md, "The envelope".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sessiond.link.identity import Identity, PublicIdentity
from sessiond.link.subjects import REPLY, REQUEST, Address, Kind, token_of
from sessiond.machine_names import MACHINE_NAME

VERSION: Final = 1
# The server takes 1 MiB in one message, with its headers.
MAX_MESSAGE_BYTES: Final = 1_000_000
# What the rest of an envelope takes at most beside fields and payload: names, keys, lengths, tag, signature.
MAX_FRAME_BYTES: Final = 512
MAX_CONTENT_BYTES: Final = MAX_MESSAGE_BYTES - MAX_FRAME_BYTES
MAX_ID_BYTES: Final = 255

_SEALED: Final = 1
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
# Each key is used once, so that the nonce may be the same every time.
_NONCE: Final = bytes(12)
_SIGNED: Final = b"sessiond link envelope 1\0"
_SEAL: Final = b"sessiond link seal 1\0"
_KINDS: Final = frozenset({"rec", "row", "cmd", "ans", "ask", REQUEST, REPLY})

AnyKind = Kind | Literal["req", "rep"]
# form  no envelope of this version          receiver  for another machine        sender  of no machine that is a peer
# kind  of another kind than its subject     signature  not the sender's, or changed on the way
# seal  not sealed for this machine          content  signed by the peer, and still no content
# token  its subject belongs to another session or command      time  a command that was signed long ago
# room  the sender has too much here
Reason = Literal["form", "receiver", "sender", "kind", "signature", "seal", "content", "token", "time", "room"]
T = TypeVar("T")


class Refused(msgspec.Struct, frozen=True):
    """Why a message is dropped, to be counted by its reason."""

    reason: Reason
    sentence: str


class PeerMessage(msgspec.Struct, frozen=True):
    """A message of a peer, verified. `id` is a session's or a command's; `fields` is JSON, for `read_fields`."""

    sender: str
    receiver: str
    kind: str
    id: str
    fields: bytes
    payload: bytes
    is_sealed: bool


class Envelopes:
    """Packs what this machine sends, and opens what its peers send. `encrypt` seals what is packed; both are opened."""

    def __init__(
        self, name: str, identity: Identity, peers: Mapping[str, PublicIdentity], *, encrypt: bool = False
    ) -> None:
        self.name = name
        self._identity = identity
        self._peers = dict(peers)
        self._encrypt = encrypt

    @property
    def peers(self) -> Collection[str]:
        """The names of the machines whose messages it opens."""
        return self._peers.keys()

    def pack(self, receiver: str, kind: AnyKind, identity: str, fields: object = None, payload: bytes = b"") -> bytes:
        """The message. `fields` is what msgspec writes as a JSON object. ValueError where it is too long to be sent."""
        head = _head(self.name, receiver, kind, sealed=self._encrypt)
        parts = [head, _content_head(identity, fields), payload]
        if self._encrypt:
            parts = [head, self._seal(self._peers[receiver], head, b"".join(parts[1:]))]
        size = sum(map(len, parts)) + _SIGNATURE_BYTES
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes cannot be sent: {MAX_MESSAGE_BYTES} are the most")
        # Joined once: a range is long.
        return b"".join((*parts, self._identity.sign(_digest(*parts))))

    def open_at(self, address: Address, data: bytes) -> PeerMessage | Refused:
        """What was found under a subject of the stream: it has to be what the subject says, by its own account."""
        opened = self.open(data, address.kind, sender=address.sender)
        if isinstance(opened, PeerMessage) and token_of(opened.id) != address.token:
            return Refused("token", f"it was found under the subject of another {_thing(address.kind)}")
        return opened

    def open(self, data: bytes, kind: AnyKind, *, sender: str | None = None) -> PeerMessage | Refused:
        """The message, if it is of a peer (of `sender`), for this machine and of this kind; else why not."""
        parsed = _parse_head(data)
        if isinstance(parsed, str):
            return Refused("form", parsed)
        names, is_sealed, start = parsed
        claimed, receiver, found = names
        peer = self._peers.get(claimed)
        if receiver != self.name:
            return Refused("receiver", f"it is for {receiver}")
        if peer is None or sender not in (None, claimed):
            return Refused("sender", f"it says that it is from {claimed}")
        if found != kind:
            return Refused("kind", f"it is of the kind {found}")
        whole = memoryview(data)[:-_SIGNATURE_BYTES]
        if not peer.has_signed(data[-_SIGNATURE_BYTES:], _digest(whole)):
            return Refused("signature", f"it was not signed by {claimed}, or changed on the way")
        content: memoryview = whole[start:]
        if is_sealed:
            opened = self._unseal(peer, data[:start], bytes(content))
            if opened is None:
                return Refused("seal", f"{claimed} has sealed it with another key than this machine's")
            content = memoryview(opened)
        parts = _parse_content(content)
        if parts is None:
            return Refused("content", f"what {claimed} has signed is no content of a message")
        identity, fields, payload = parts
        return PeerMessage(claimed, receiver, kind, identity, fields, payload, is_sealed)

    def _seal(self, peer: PublicIdentity, head: bytes, content: bytes) -> bytes:
        once = X25519PrivateKey.generate()
        public = once.public_key().public_bytes_raw()
        # The first secret is another one every time; the second one only these two machines have.
        shared = once.exchange(X25519PublicKey.from_public_bytes(peer.sealing)) + self._identity.agree_with(
            peer.sealing
        )
        return public + AESGCM(_seal_key(shared, public, peer.sealing)).encrypt(_NONCE, content, head)

    def _unseal(self, peer: PublicIdentity, head: bytes, sealed: bytes) -> bytes | None:
        public = sealed[:_KEY_BYTES]
        try:
            shared = self._identity.agree_with(public) + self._identity.agree_with(peer.sealing)
            key = _seal_key(shared, public, self._identity.public.sealing)
            return AESGCM(key).decrypt(_NONCE, sealed[_KEY_BYTES:], head)
        except (ValueError, InvalidTag):  # a key of the wrong length, or one with which anybody agrees
            return None


def read_fields(envelope: PeerMessage, form: type[T]) -> T | Refused:
    """The fields as a struct. A peer may have signed anything, so they may be unusable all the same."""
    try:
        return msgspec.json.decode(envelope.fields, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Refused("content", f"the fields of a message from {envelope.sender} cannot be read")


def _head(sender: str, receiver: str, kind: str, *, sealed: bool) -> bytes:
    names = (name.encode("ascii") for name in (sender, receiver, kind))
    return bytes((VERSION, _SEALED if sealed else 0)) + b"".join(bytes((len(name),)) + name for name in names)


def _parse_head(data: bytes) -> tuple[tuple[str, str, str], bool, int] | str:
    """Sender, receiver and kind, whether it is sealed, and where the content begins; or what is wrong."""
    if len(data) > MAX_MESSAGE_BYTES:
        return f"it has {len(data)} bytes, more than {MAX_MESSAGE_BYTES}"
    if len(data) < 2:
        return "it is too short"
    if data[0] != VERSION:
        return f"it is of version {data[0]}, this sessiond reads {VERSION}"
    if data[1] not in (0, _SEALED):
        return "it has unknown flags"
    at = 2
    names = []
    for _ in range(3):
        length = data[at] if at < len(data) else 0
        names.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    if at + _SIGNATURE_BYTES > len(data):
        return "it is too short"
    sender, receiver, kind = (name.decode("latin-1") for name in names)
    if not MACHINE_NAME.fullmatch(sender) or not MACHINE_NAME.fullmatch(receiver) or kind not in _KINDS:
        return "it names no machines, or no known kind"
    return (sender, receiver, kind), data[1] == _SEALED, at


def _content_head(identity: str, fields: object) -> bytes:
    """The content without its payload."""
    name = identity.encode()
    if len(name) > MAX_ID_BYTES:
        raise ValueError(f"an id of {len(name)} bytes cannot be sent: {MAX_ID_BYTES} are the most")
    encoded = b"{}" if fields is None else msgspec.json.encode(fields)
    return b"".join((bytes((len(name),)), name, struct.pack(">I", len(encoded)), encoded))


def _parse_content(content: memoryview) -> tuple[str, bytes, bytes] | None:
    """Id, fields and payload; None where there are none."""
    try:
        length = content[0]
        name = bytes(content[1 : 1 + length]).decode()
        at = 1 + length + 4
        (size,) = struct.unpack(">I", content[1 + length : at])
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    if at + size > len(content):
        return None
    return name, bytes(content[at : at + size]), bytes(content[at + size :])


def _digest(*parts: bytes | memoryview) -> bytes:
    """What is signed of the parts, one behind the other. The digest, because Ed25519 goes twice over what it signs, by
    a slower hash.
    """
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return _SIGNED + found.digest()


def _seal_key(shared: bytes, once: bytes, receiver: bytes) -> bytes:
    derivation: Any = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_SEAL + once + receiver)
    key: bytes = derivation.derive(shared)
    return key


def _thing(kind: Kind) -> str:
    return "command" if kind in ("cmd", "ans") else "session"
