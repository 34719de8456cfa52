"""COSE_Sign1 with Ed25519: bytes in, bytes out. Sans-io; knows no tokens, no key files and no time.

RFC 9052 section 4.2 (COSE_Sign1) and 4.4 (Sig_structure), RFC 9053 section 2.2 (EdDSA), RFC 8949 section 4.2
(deterministic encoding). Stricter than the RFCs: only tag 18; only EdDSA, in the protected header; no `crit`; no
duplicate header; no bytes after the message; only the encoding that `sign` would produce.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

TAG_SIGN1 = 18
# Header labels and algorithm ids of the IANA COSE registries.
ALG, CRIT = 1, 2
EDDSA = -8
SIGNATURE_BYTES = 64
MAX_MESSAGE_BYTES = 16 * 1024
# Headers are not nested. The limit protects the decoder from hostile nesting.
_MAX_DEPTH = 4


class CoseError(Exception):
    """The bytes are not an acceptable COSE_Sign1. The reason is for logs; callers are not told it."""


class Sign1(msgspec.Struct, frozen=True):
    """A decoded COSE_Sign1. `protected_raw` is the protected header as it was signed."""

    protected_raw: bytes
    protected: dict[Any, Any]
    unprotected: dict[Any, Any]
    payload: bytes
    signature: bytes


def sign(payload: bytes, key: Ed25519PrivateKey, *, external_aad: bytes = b"") -> bytes:
    """A tagged COSE_Sign1 over `payload`: protected header `{alg: EdDSA}`, unprotected header empty."""
    import cbor2  # most daemons have no tokens

    protected = encode({ALG: EDDSA})
    signature = key.sign(sig_structure(protected, external_aad, payload))
    return encode(cbor2.CBORTag(TAG_SIGN1, [protected, {}, payload, signature]))


def verify(data: bytes, key: Ed25519PublicKey, *, external_aad: bytes = b"") -> Sign1:
    """The message in `data`, signed by `key`. CoseError if it is malformed or not signed by `key`."""
    from cryptography.exceptions import InvalidSignature

    message = parse(data)
    algorithm = message.protected.get(ALG)
    if type(algorithm) is not int or algorithm != EDDSA:
        raise CoseError("the algorithm in the protected header is not EdDSA")
    if CRIT in message.protected:
        raise CoseError("the message has critical headers, and none is understood here")
    if len(message.signature) != SIGNATURE_BYTES:
        raise CoseError(f"the signature is not {SIGNATURE_BYTES} bytes long")
    try:
        key.verify(message.signature, sig_structure(message.protected_raw, external_aad, message.payload))
    except InvalidSignature:
        raise CoseError("the signature is not that of the key") from None
    return message


def parse(data: bytes) -> Sign1:
    """The parts of a tagged COSE_Sign1 with any algorithm. Does not verify the signature."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise CoseError(f"the message is over {MAX_MESSAGE_BYTES} bytes")
    import cbor2

    tagged = decode(data)
    if not isinstance(tagged, cbor2.CBORTag) or tagged.tag != TAG_SIGN1:
        raise CoseError("the message is not tagged as COSE_Sign1 (18)")
    parts = tagged.value
    if not isinstance(parts, list | tuple) or len(parts) != 4:
        raise CoseError("COSE_Sign1 is an array of four")
    protected_raw, unprotected, payload, signature = parts
    if not isinstance(protected_raw, bytes) or not isinstance(payload, bytes) or not isinstance(signature, bytes):
        raise CoseError("protected header, payload and signature are byte strings")
    # An empty protected header is a zero-length string (RFC 9052 section 3); an encoded empty map is refused.
    protected = decode(protected_raw) if protected_raw else {}
    headers = [_header(protected), _header(unprotected)]
    if headers[0].keys() & headers[1].keys() or (protected_raw and not headers[0]):
        raise CoseError("a header stands twice, or an empty one is spelled out")
    if CRIT in headers[1]:
        raise CoseError("critical headers are protected ones")
    return Sign1(protected_raw, headers[0], headers[1], payload, signature)


def sig_structure(protected_raw: bytes, external_aad: bytes, payload: bytes) -> bytes:
    """The bytes that are signed: RFC 9052 section 4.4, context `Signature1`."""
    return encode(["Signature1", protected_raw, external_aad, payload])


def encode(value: Any) -> bytes:
    """`value` in deterministic CBOR.

    cbor2 sorts map keys by length first, RFC 8949 by their bytes. For the keys used here (numbers below 24 and private
    claims of five bytes) the order is the same.
    """
    import cbor2

    return cbor2.dumps(value, canonical=True)


def decode(data: bytes) -> Any:
    """The value of deterministic CBOR. CoseError for any other encoding and for trailing bytes.

    cbor2 accepts trailing bytes, long forms of numbers and unordered map keys. Encoding the value again and comparing
    the bytes refuses all three.
    """
    import cbor2

    try:
        value = cbor2.loads(data, max_depth=_MAX_DEPTH, allow_indefinite=False, allow_duplicate_keys=False)
        again = encode(value)
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CoseError(f"not CBOR: {error}") from None
    if again != data:
        raise CoseError("the CBOR is not deterministic, or bytes follow it")
    return value


def _header(value: Any) -> dict[Any, Any]:
    # type(), since True and 1.0 are equal to the label 1.
    if not isinstance(value, Mapping) or not all(type(label) in (int, str) for label in value):
        raise CoseError("a header is a map from numbers or texts")
    return dict(value)
