"""The keys of a machine: one pair to sign with (Ed25519), one to seal with (X25519). Others know its public half by one
line of text that is handed over by people, with a fingerprint to compare. Reads and writes one file, `keys/link.key`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sessiond.errors import quote, reason_of
from sessiond.link.failures import IdentityError
from sessiond.store import dirfd, layout

_KEY_BYTES = 32
# Says what the text is, and in which form; another form gets another number.
_PREFIX = "sdl1-"
_CHECK_BYTES = 4  # finds a letter that was lost or changed on the way
_TEXT = re.compile(r"sdl1-([A-Za-z0-9_-]{91})")


class PublicIdentity(msgspec.Struct, frozen=True):
    """What others know of a machine: 32 bytes to verify its signatures, 32 bytes to seal for it."""

    signing: bytes
    sealing: bytes

    @property
    def text(self) -> str:
        """The line for the configuration of the others."""
        keys = self.signing + self.sealing
        return _PREFIX + base64.urlsafe_b64encode(keys + _check_of(keys)).rstrip(b"=").decode()

    @property
    def fingerprint(self) -> str:
        """Ten groups of four letters, for people to compare: 200 bits."""
        digest = hashlib.sha256(b"sessiond link fingerprint\0" + self.signing + self.sealing).digest()
        letters = base64.b32encode(digest[:25]).decode().lower()
        return " ".join(letters[at : at + 4] for at in range(0, len(letters), 4))

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        """Whether the signature is this machine's, of these bytes."""
        try:
            _verifier(self.signing).verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Identity:
    """Both pairs of keys of this machine, from 64 bytes."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 2 * _KEY_BYTES:
            raise IdentityError(
                f"{layout.KEYS}/{layout.LINK_KEY} in the store is damaged: it has {len(secret)} bytes, not "
                f"{2 * _KEY_BYTES}; put a copy back, or move it away and hand out a new identity"
            )
        self._signing = Ed25519PrivateKey.from_private_bytes(secret[:_KEY_BYTES])
        self.sealing = X25519PrivateKey.from_private_bytes(secret[_KEY_BYTES:])
        self.public = PublicIdentity(
            self._signing.public_key().public_bytes_raw(), self.sealing.public_key().public_bytes_raw()
        )

    def __repr__(self) -> str:
        return f"Identity({self.public.text})"

    def sign(self, data: bytes) -> bytes:
        return self._signing.sign(data)

    def agree_with(self, public: bytes) -> bytes:
        """The secret that only this machine and the holder of `public` can compute. ValueError for a weak key."""
        return self.sealing.exchange(X25519PublicKey.from_public_bytes(public))


def no_store(store: Path) -> str:
    """The sentence where there is no store; the daemon alone makes one."""
    return f"{store} is no store of sessiond yet: start the daemon once (sessiond serve), or name another with --store"


def new_identity() -> Identity:
    return Identity(os.urandom(2 * _KEY_BYTES))


def load_identity(store: Path, *, make: bool = False) -> Identity:
    """This machine's identity in the store. IdentityError where there is none, unless it is to be made."""
    try:
        with contextlib.ExitStack() as held:
            try:
                root_fd = held.enter_context(dirfd.closing(dirfd.open_root(store)))
                keys_fd = held.enter_context(dirfd.closing(dirfd.open_dir(root_fd, layout.KEYS)))
            except FileNotFoundError:
                raise IdentityError(no_store(store)) from None
            return _load(keys_fd, make=make)
    except OSError as error:
        raise IdentityError(f"the identity in the store {store} cannot be read: {reason_of(error)}") from None


def _load(keys_fd: int, *, make: bool) -> Identity:
    try:
        fd = dirfd.open_file(keys_fd, layout.LINK_KEY, os.O_RDONLY)
    except FileNotFoundError:
        if not make:
            raise IdentityError(
                'this machine has no identity yet; make and print it with "sessiond link identity"'
            ) from None
        # Written beside it and linked to the name, so that of two that make one at once both have the first.
        temporary = f"{dirfd.TEMP_PREFIX}{layout.LINK_KEY}-{os.urandom(6).hex()}"
        dirfd.write_atomic(keys_fd, temporary, os.urandom(2 * _KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, layout.LINK_KEY, src_dir_fd=keys_fd, dst_dir_fd=keys_fd, follow_symlinks=False)
        os.unlink(temporary, dir_fd=keys_fd)
        dirfd.fsync_dir(keys_fd)
        return _load(keys_fd, make=False)
    with dirfd.closing(fd):
        return Identity(os.read(fd, 2 * _KEY_BYTES + 1))


def parse_public(text: str, whose: str) -> PublicIdentity:
    """The public identity that a line is. IdentityError says whose line is wrong."""
    found = _TEXT.fullmatch(text.strip())
    data = base64.urlsafe_b64decode(found[1] + "=") if found else b""
    public = PublicIdentity(data[:_KEY_BYTES], data[_KEY_BYTES : 2 * _KEY_BYTES])
    # Compared as text, so that each key has one spelling: the last letter has bits that stand for nothing.
    if found is None or public.text != found[0]:
        why = "a letter of it is missing or wrong" if text.strip().startswith(_PREFIX) else f"it is {quote(text)}"
        raise IdentityError(
            f'the key of {whose} is not what "sessiond link identity" prints there: {why}; copy the whole line'
        )
    return public


def parse_all(keys: Mapping[str, str]) -> dict[str, PublicIdentity]:
    """The public identities of all peers, by name."""
    return {name: parse_public(text, name) for name, text in keys.items()}


@lru_cache(maxsize=256)
def _verifier(signing: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(signing)


def _check_of(keys: bytes) -> bytes:
    return hashlib.sha256(b"sessiond link identity\0" + keys).digest()[:_CHECK_BYTES]
