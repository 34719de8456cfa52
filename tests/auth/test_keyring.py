"""The signing key file: what it must contain."""

from __future__ import annotations

import pytest
from support.rows import check_each

from sessiond.auth.keyring import SigningKey
from sessiond.errors import ConfigError

SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")


def test_the_file_is_the_seed_of_rfc_8032() -> None:
    key = SigningKey(SEED)
    assert key.public.public_bytes_raw().hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert SEED.hex() not in repr(key)


@check_each("data", [b"", SEED[:-1], SEED + b"\n", SEED.hex().encode()])
def test_a_file_without_a_valid_key_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=f"is {len(data)} bytes long, not 32"):
        SigningKey(data)
