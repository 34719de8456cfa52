from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.link.failures import IdentityError
from sessiond.link.identity import (
    Identity,
    PublicIdentity,
    load_identity,
    new_identity,
    parse_all,
    parse_public,
)

SECRET = bytes(range(64))
# Of SECRET; what was handed out once must count for ever.
TEXT = "sdl1-A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg1gHLWNliA0a7qMprfkSE4OFHtIaKOO3XpZdDSzRZiVEYEOCA"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    return tmp_path


def test_the_identity_is_made_once_in_a_file_of_the_owners(store: Path) -> None:
    with pytest.raises(IdentityError, match='make and print it with "sessiond link identity"'):
        load_identity(store)
    made = load_identity(store, make=True)
    file = store / "keys" / "link.key"
    assert (file.stat().st_mode & 0o777, file.stat().st_size, os.listdir(file.parent)) == (0o600, 64, ["link.key"])
    assert load_identity(store).public == load_identity(store, make=True).public == made.public


def test_two_that_make_it_at_once_have_the_same(store: Path) -> None:
    ready = threading.Barrier(8)
    found = []

    def make() -> None:
        ready.wait()
        found.append(load_identity(store, make=True).public.text)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [load_identity(store).public.text] * 8


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_damaged_file_is_named(store: Path, length: int) -> None:
    (store / "keys" / "link.key").write_bytes(bytes(length))
    with pytest.raises(IdentityError, match=rf"keys/link\.key in the store is damaged: it has {length} bytes, not 64"):
        load_identity(store, make=True)


def test_a_link_in_its_place_is_not_followed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(SECRET)
    (store / "keys" / "link.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="cannot be read: a symbolic link stands where none is followed"):
        load_identity(store, make=True)


def test_a_folder_that_is_no_store_gets_no_identity(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="is no store of sessiond yet"):
        load_identity(tmp_path, make=True)
    with pytest.raises(IdentityError, match="is no store of sessiond yet"):
        load_identity(tmp_path / "missing", make=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot be read: Not a directory"):
        load_identity(tmp_path / "file", make=True)


def test_the_text_and_the_fingerprint_of_an_identity_stay_what_they_are() -> None:
    public = Identity(SECRET).public
    assert public.text == TEXT
    assert public.fingerprint == "ls6y qps4 dbem 76xt gtkh uj42 dvht uoov ka75 2bxs"
    assert parse_public(f"  {TEXT}\n", "mars") == public
    assert parse_all({"mars": TEXT}) == {"mars": public}
    assert SECRET not in repr(Identity(SECRET)).encode()


@given(st.integers(0, len(TEXT) - 1), st.sampled_from("ABCxyz019-_= é"))
def test_a_letter_that_was_changed_is_noticed(at: int, letter: str) -> None:
    changed = TEXT[:at] + letter + TEXT[at + 1 :]
    if changed.strip() != TEXT:
        with pytest.raises(IdentityError, match="the key of mars is not what"):
            parse_public(changed, "mars")


@given(st.text())
@example("")
@example("sdl1-")
@example("sdl1-" + "A" * 91)
@example("sdl1-" + "_" * 91)
@example(TEXT[:-1] + "N")
def test_any_other_text_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(IdentityError, match="copy the whole line"):
        parse_public(text, "mars")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_every_pair_of_keys_has_a_text_that_gives_it_back(signing: bytes, sealing: bytes) -> None:
    public = PublicIdentity(signing, sealing)
    assert parse_public(public.text, "mars") == public
    # The configuration takes no other texts.
    assert len(public.text) == 96


def test_only_the_signer_has_signed() -> None:
    one, other = new_identity(), new_identity()
    signature = one.sign(b"data")
    assert one.public.has_signed(signature, b"data")
    assert not one.public.has_signed(signature, b"date")
    assert not other.public.has_signed(signature, b"data")
    assert not one.public.has_signed(b"", b"data")


@given(st.binary(min_size=32, max_size=32))
def test_a_key_that_is_no_point_has_signed_nothing(key: bytes) -> None:
    assert not PublicIdentity(key, key).has_signed(bytes(64), b"data")
