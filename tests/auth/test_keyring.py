"""The signing key's file: read, made once, never replaced."""

from __future__ import annotations

import pytest

from sessiond.auth.keyring import SigningKey, open_signing_key
from sessiond.errors import ConfigError

SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")


class File:
    """A key file in memory that is never written twice."""

    def __init__(self, data: bytes | None = None, rival: bytes | None = None) -> None:
        self.data = data
        self.rival = rival

    def read(self) -> bytes | None:
        return self.data

    def create(self, seed: bytes) -> bytes:
        self.data = self.rival or self.data or seed
        return self.data


def test_the_file_is_the_seed_of_rfc_8032() -> None:
    key = SigningKey(SEED)
    assert key.public.public_bytes_raw().hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert SEED.hex() not in repr(key)


def test_a_missing_key_is_made_and_found_again() -> None:
    file = File()
    made = open_signing_key(file.read, file.create, random=lambda size: SEED[:size])
    assert file.data == SEED
    again = open_signing_key(file.read, file.create)
    assert again.public.public_bytes_raw() == made.public.public_bytes_raw()


def test_a_key_that_somebody_else_made_first_is_the_one_used() -> None:
    file = File(rival=SEED)
    key = open_signing_key(file.read, file.create)
    assert key.public.public_bytes_raw() == SigningKey(SEED).public.public_bytes_raw()


@pytest.mark.parametrize("data", [b"", SEED[:-1], SEED + b"\n", SEED.hex().encode()])
def test_a_file_that_holds_no_key_stops_the_start_and_is_not_replaced(data: bytes) -> None:
    file = File(data)
    with pytest.raises(ConfigError, match=f"is {len(data)} bytes long, not 32"):
        open_signing_key(file.read, file.create)
    assert file.data == data
