"""The store's signing key: 32 bytes in `keys/signing.key`. Knows the format; the store reads and writes the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SEED_BYTES = 32


class SigningKey:
    """An Ed25519 key pair (RFC 8032), derived from its seed of 32 bytes."""

    __slots__ = ("private", "public")

    private: Ed25519PrivateKey
    public: Ed25519PublicKey

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != SEED_BYTES:
            raise ConfigError(
                f"keys/signing.key is {len(seed)} bytes long, not {SEED_BYTES}: put the right file back, or move it "
                "away and start again; a new key makes all earlier tokens void"
            )
        self.private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self.private.public_key()

    def __repr__(self) -> str:
        return "SigningKey(...)"
