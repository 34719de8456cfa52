"""COSE_Sign1 against published examples, and every non-canonical encoding that is refused."""

from __future__ import annotations

import cbor2
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.auth.cose import CoseError, Sign1, decode, encode, parse, sig_structure, sign, verify

# RFC 8032 section 7.1, TEST 1 and 2: seed, public key, message, signature.
RFC8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
        "b00d291612bb0c00",
    ),
]

# COSE-WG Examples, eddsa-examples/eddsa-sig-01: Ed25519 with the key of RFC 8032 TEST 1.
EDDSA_SIG_01 = bytes.fromhex(
    "D28445A201270300A10442313154546869732069732074686520636F6E74656E742E58407142FD2FF96D56DB85BEE905A76BA1D0B7321A95C8"
    "C4D3607C5781932B7AFB8711497DFA751BF40B58B3BCC32300B1487F3DB34085EEF013BF08F4A44D6FEF0D"
)

# RFC 8392 appendix A.3: a CWT signed with ES256, by the key of appendix A.2.3.
RFC8392_A3 = bytes.fromhex(
    "d28443a10126a104524173796d6d657472696345434453413235365850a70175636f61703a2f2f61732e6578616d706c652e636f6d02656572"
    "696b77037818636f61703a2f2f6c696768742e6578616d706c652e636f6d041a5612aeb0051a5610d9f0061a5610d9f007420b7158405427c1"
    "ff28d23fbad1f29c4c7c6a555e601d6fa29f9179bc3d7438bacaca5acd08c8d4d4f96131680c429a01f85951ecee743a52b9b63632c5720912"
    "0e1c9e30"
)
RFC8392_KEY = (
    "143329cce7868e416927599cf65a34f3ce2ffda55a7eca69ed8919a394d42f0f",
    "60f7f1a780d8a783bfb7a2dd6b2796e8128dbbcef9d3d168db9529971a36e7b9",
)

# COSE-WG Examples, sign1-tests: their common key, and messages that are to pass or to fail.
COSE_WG_KEY = (
    "bac5b11cad8f99f9c72b05cf4b9e26d244dc189f745228255a219a86d6a09eff",
    "20138bf82dc1b6d562be0fa54ab7804a3a64b6d72ccfed6b6fb6ed28bbfc117e",
)
SIGN_PASS_02 = bytes.fromhex(
    "D28443A10126A10442313154546869732069732074686520636F6E74656E742E5840EAE868ECC176883766C5DC5BA5B8DCA25DAB3C2E56A551"
    "CE5705B793914348E155388B10C4F1B59A6733EAB416870A945111A4B2FBDBEF33A77234B1DEFF2F9B"
)
SIGN_FAIL_01_WRONG_TAG = bytes.fromhex(
    "D903E68443A10126A10442313154546869732069732074686520636F6E74656E742E5840EAE868ECC176883766C5DC5BA5B8DCA25DAB3C2E56"
    "A551CE5705B793914348E19F43D6C6BA654472DA301B645B293C9BA939295B97C4BDB847782BFF384C5794"
)
SIGN_FAIL_02_CHANGED = bytes.fromhex(
    "D28443A10126A10442313154546869732069732074686520636F6E74656E742F5840EAE868ECC176883766C5DC5BA5B8DCA25DAB3C2E56A551"
    "CE5705B793914348E19F43D6C6BA654472DA301B645B293C9BA939295B97C4BDB847782BFF384C5794"
)
SIGN_FAIL_04_ALG_IS_A_TEXT = bytes.fromhex(
    "D2844AA10167756E6B6E6F776EA10442313154546869732069732074686520636F6E74656E742E5840EAE868ECC176883766C5DC5BA5B8DCA2"
    "5DAB3C2E56A551CE5705B793914348E19F43D6C6BA654472DA301B645B293C9BA939295B97C4BDB847782BFF384C5794"
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC8032[0][0]))
PUBLIC = KEY.public_key()


def is_valid_es256(message: Sign1, key: tuple[str, str], external_aad: bytes = b"") -> bool:
    public = ec.EllipticCurvePublicNumbers(int(key[0], 16), int(key[1], 16), ec.SECP256R1()).public_key()
    half = len(message.signature) // 2
    r, s = (int.from_bytes(part, "big") for part in (message.signature[:half], message.signature[half:]))
    signed = sig_structure(message.protected_raw, external_aad, message.payload)
    try:
        public.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def sign_odd_message(
    protected: bytes | dict[object, object],
    unprotected: object = None,
    *,
    payload: object = b"x",
    signature: object = None,
    more: tuple[object, ...] = (),
    tag: int = 18,
) -> bytes:
    """A message with a valid signature, but with unusual headers or encoding."""
    raw = protected if isinstance(protected, bytes) else encode(protected)
    signed = KEY.sign(sig_structure(raw, b"", b"x")) if signature is None else signature
    return cbor2.dumps(cbor2.CBORTag(tag, [raw, {} if unprotected is None else unprotected, payload, signed, *more]))


@pytest.mark.parametrize(("seed", "public", "message", "signature"), RFC8032)
def test_the_library_reproduces_the_signatures_of_rfc_8032(
    seed: str, public: str, message: str, signature: str
) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
    assert key.public_key().public_bytes_raw().hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature


def test_the_working_groups_eddsa_example_verifies() -> None:
    assert verify(EDDSA_SIG_01, PUBLIC) == Sign1(
        protected_raw=bytes.fromhex("a201270300"),
        protected={1: -8, 3: 0},
        unprotected={4: b"11"},
        payload=b"This is the content.",
        signature=EDDSA_SIG_01[-64:],
    )


def test_the_signed_cwt_of_rfc_8392_is_parsed_and_its_signature_is_valid() -> None:
    message = parse(RFC8392_A3)
    assert message == Sign1(
        protected_raw=b"\xa1\x01\x26",
        protected={1: -7},
        unprotected={4: b"AsymmetricECDSA256"},
        payload=RFC8392_A3[-146:-66],
        signature=RFC8392_A3[-64:],
    )
    assert is_valid_es256(message, RFC8392_KEY)
    assert decode(message.payload) == {
        1: "coap://as.example.com",
        2: "erikw",
        3: "coap://light.example.com",
        4: 1444064944,
        5: 1443944944,
        6: 1443944944,
        7: b"\x0bq",
    }


def test_the_working_groups_sign1_examples_pass_and_fail_as_documented() -> None:
    assert sig_structure(b"\xa1\x01\x26", bytes.fromhex("11aa22bb33cc44dd55006699"), b"This is the content.").hex() == (
        "846a5369676e61747572653143a101264c11aa22bb33cc44dd5500669954546869732069732074686520636f6e74656e742e"
    )
    external = parse(SIGN_PASS_02)
    assert is_valid_es256(external, COSE_WG_KEY, bytes.fromhex("11aa22bb33cc44dd55006699"))
    assert not is_valid_es256(external, COSE_WG_KEY)
    assert not is_valid_es256(parse(SIGN_FAIL_02_CHANGED), COSE_WG_KEY)
    with pytest.raises(CoseError, match="not tagged as COSE_Sign1"):
        parse(SIGN_FAIL_01_WRONG_TAG)
    with pytest.raises(CoseError, match="not EdDSA"):
        verify(SIGN_FAIL_04_ALG_IS_A_TEXT, PUBLIC)
    with pytest.raises(CoseError, match="not EdDSA"):
        verify(SIGN_PASS_02, PUBLIC)


def test_a_signed_message_verifies_and_has_the_documented_shape() -> None:
    signed = sign(b"hello", KEY)
    assert signed[:13] == bytes.fromhex("d28443a10127a0") + b"\x45hello"
    assert verify(signed, PUBLIC).payload == b"hello"
    assert verify(sign(b"", KEY, external_aad=b"ctx"), PUBLIC, external_aad=b"ctx").payload == b""
    with pytest.raises(CoseError, match="not that of the key"):
        verify(sign(b"", KEY, external_aad=b"ctx"), PUBLIC)


def test_verification_with_another_key_fails() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC8032[1][0]))
    with pytest.raises(CoseError, match="not that of the key"):
        verify(sign(b"hello", KEY), other.public_key())


GOOD = {1: -8}
REFUSED = {
    "no algorithm": (sign_odd_message({}), "an empty one is spelled out"),
    "no protected header": (sign_odd_message(b""), "not EdDSA"),
    "alg none": (sign_odd_message({1: 0}), "not EdDSA"),
    "alg ES256": (sign_odd_message({1: -7}), "not EdDSA"),
    "alg as text": (sign_odd_message({1: "EdDSA"}), "not EdDSA"),
    "alg as a float": (sign_odd_message({1: -8.0}), "not EdDSA"),
    "alg unprotected": (sign_odd_message(b"", {1: -8}), "not EdDSA"),
    "alg in both": (sign_odd_message(GOOD, {1: -8}), "stands twice"),
    "crit": (sign_odd_message({1: -8, 2: [4], 4: b"k"}), "critical headers"),
    "crit unprotected": (sign_odd_message(GOOD, {2: [4]}), "critical headers"),
    "label true": (sign_odd_message({True: -8}), "map from numbers or texts"),
    "label bytes": (sign_odd_message({1: -8, b"x": 1}), "map from numbers or texts"),
    "protected is an array": (sign_odd_message(encode([1, -8])), "map from numbers or texts"),
    "protected is no cbor": (sign_odd_message(b"\xff"), "not CBOR"),
    "unprotected is an array": (sign_odd_message(GOOD, []), "map from numbers or texts"),
    "unprotected is a text": (sign_odd_message(GOOD, ""), "map from numbers or texts"),
    "a fifth element": (sign_odd_message(GOOD, more=(b"",)), "array of four"),
    "untagged": (encode([encode(GOOD), {}, b"x", b"y" * 64]), "not tagged"),
    "COSE_Sign": (sign_odd_message(GOOD, tag=98), "not tagged"),
    "COSE_Mac0": (sign_odd_message(GOOD, tag=17), "not tagged"),
    "CWT tag around it": (encode(cbor2.CBORTag(61, cbor2.loads(sign(b"x", KEY)))), "not tagged"),
    "payload nil": (sign_odd_message(GOOD, payload=None), "are byte strings"),
    "payload text": (sign_odd_message(GOOD, payload="x"), "are byte strings"),
    "payload changed": (sign_odd_message(GOOD, payload=b"z"), "not that of the key"),
    "signature text": (sign_odd_message(GOOD, signature="x" * 64), "are byte strings"),
    "signature short": (sign_odd_message(GOOD, signature=b"x" * 63), "64 bytes"),
    "signature long": (sign_odd_message(GOOD, signature=sign(b"x", KEY)[-64:] + b"\0"), "64 bytes"),
    "signature wrong": (sign_odd_message(GOOD, signature=b"x" * 64), "not that of the key"),
    "empty": (b"", "not CBOR"),
    "trailing byte": (sign(b"x", KEY) + b"\0", "not deterministic"),
    "twice": (sign(b"x", KEY) * 2, "not deterministic"),
    "long form of a length": (sign(b"x", KEY).replace(b"\x41x", b"\x58\x01x"), "not deterministic"),
    "long form of the tag": (b"\xd8\x12" + sign(b"x", KEY)[1:], "not deterministic"),
    "indefinite array": (b"\xd2\x9f" + sign(b"x", KEY)[2:] + b"\xff", "not CBOR"),
    "duplicate label": (sign_odd_message(bytes.fromhex("a201270127")), "not CBOR"),
    "labels out of order": (sign_odd_message(bytes.fromhex("a203000127")), "not deterministic"),
    "torn": (sign(b"x", KEY)[:-1], "not CBOR"),
    "nested": (b"\xd2" + b"\x81" * 2000, "not CBOR"),
    "too long": (sign(b"x" * 16_384, KEY), "over 16384 bytes"),
}


@check_each(("data", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_every_other_encoding_of_a_message_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(CoseError, match=sentence):
        verify(data, PUBLIC)


def test_a_message_at_the_size_limit_is_accepted() -> None:
    overhead = len(sign(b"x" * 300, KEY)) - 300
    assert verify(sign(b"x" * (16_384 - overhead), KEY), PUBLIC)
    with pytest.raises(CoseError, match="over 16384"):
        verify(sign(b"x" * (16_384 - overhead + 1), KEY), PUBLIC)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_cose_error(data: bytes) -> None:
    for candidate in (data, b"\xd2\x84" + data, bytes.fromhex("d28443a10127a0") + data):
        with pytest.raises(CoseError):
            verify(candidate, PUBLIC)


@given(payload=st.binary(max_size=60), at=st.integers(0), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_refused(payload: bytes, at: int, bit: int) -> None:
    signed = bytearray(sign(payload, KEY))
    signed[at % len(signed)] ^= 1 << bit
    with pytest.raises(CoseError):
        verify(bytes(signed), PUBLIC)


def depth(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0


@given(
    st.recursive(
        st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=9) | st.text(max_size=9) | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 23), inner, max_size=3),
        max_leaves=3,
    ).filter(lambda value: depth(value) <= 3)
)
def test_deterministic_encoding_decodes_to_the_same_value(value: object) -> None:
    raw = encode(value)
    assert encode(decode(raw)) == raw
