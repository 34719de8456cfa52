import pytest
from support.rows import check_each

from sessiond.errors import Forbidden, Unauthenticated
from sessiond.model.caller import NOBODY, OWNER, Caller
from sessiond.transports.gate import Door, caller_of, check_host_and_origin, loopback_hosts

TCP = Door("http", NOBODY, loopback_hosts("127.0.0.1", 7433), frozenset(["https://app.example"]))
UNIX = Door("sessiond", OWNER)
GOOD = (b"host", b"127.0.0.1:7433")


@check_each("host", [b"127.0.0.1:7433", b"localhost:7433", b"LOCALHOST:7433", b"[::1]:7433"])
def test_every_loopback_name_with_our_port_is_accepted_as_host(host):
    assert check_host_and_origin(TCP, None, [(b"Host", host)]) is None


@check_each(
    "hosts",
    [
        [],
        [b""],
        [b"127.0.0.1"],
        [b"127.0.0.1:7434"],
        [b"localhost.evil:7433"],
        [b"localhost.:7433"],
        [b"evil:7433"],
        [b"127.0.0.1:7433@evil"],
        [b"127.0.0.1:7433.evil"],
        [b"127.0.0.1:7433", b"127.0.0.1:7433"],
        [b"127.0.0.1:7433, evil"],
        [b"0.0.0.0:7433"],
    ],
)
def test_every_other_host_is_refused(hosts):
    with pytest.raises(Forbidden):
        check_host_and_origin(TCP, None, [(b"host", host) for host in hosts])


def test_the_host_of_an_absolute_target_is_checked_too():
    assert check_host_and_origin(TCP, "localhost:7433", [GOOD]) is None
    for authority in ("evil", "localhost", "user@localhost:7433"):
        with pytest.raises(Forbidden):
            check_host_and_origin(TCP, authority, [GOOD])


def test_our_own_origin_and_listed_ones_are_accepted():
    for origin in (b"http://127.0.0.1:7433", b"http://localhost:7433", b"http://[::1]:7433"):
        assert check_host_and_origin(TCP, None, [GOOD, (b"origin", origin)]) is None
    assert check_host_and_origin(TCP, None, [GOOD, (b"origin", b"https://app.example")]) == "https://app.example"


@check_each(
    "origins",
    [
        [b"null"],
        [b""],
        [b"https://127.0.0.1:7433"],
        [b"http://localhost:7434"],
        [b"http://localhost"],
        [b"http://localhost.evil:7433"],
        [b"https://app.example.evil"],
        [b"https://app.example:444"],
        [b"http://app.example"],
        [b"https://app.example", b"https://app.example"],
        [b"https://app.example", b"https://evil"],
    ],
)
def test_every_other_origin_is_refused(origins):
    with pytest.raises(Forbidden):
        check_host_and_origin(TCP, None, [GOOD, *[(b"origin", origin) for origin in origins]])


def test_a_unix_socket_checks_neither_host_nor_origin():
    assert check_host_and_origin(UNIX, None, [(b"host", b"anything"), (b"origin", b"null")]) is None


def test_the_default_port_of_http_may_be_omitted():
    assert loopback_hosts("127.0.0.2", 80) >= {"127.0.0.1", "localhost", "[::1]", "127.0.0.2", "127.0.0.2:80"}
    assert "[::1]:1" in loopback_hosts("::1", 1) and "localhost" not in loopback_hosts("::1", 1)


def authenticate(token):
    if token != "good":
        raise Unauthenticated("No.")
    return Caller(kind="token", token_id="t")


def test_the_caller_is_the_token_or_else_the_default_of_the_listener():
    assert caller_of(UNIX, [], authenticate) == OWNER
    for scheme in (b"Bearer good", b"bearer  good ", b"BEARER good"):
        assert caller_of(UNIX, [(b"authorization", scheme)], authenticate).token_id == "t"


@check_each(
    "said", [[b"Bearer bad"], [b"Bearer"], [b"Bearer "], [b"Basic good"], [b"good"], [b""], [b"Bearer good"] * 2]
)
def test_a_bad_token_is_refused_even_on_the_owners_socket(said):
    for door in (UNIX, TCP):
        with pytest.raises(Unauthenticated):
            caller_of(door, [(b"authorization", value) for value in said], authenticate)
    with pytest.raises(Unauthenticated):
        caller_of(TCP, [], authenticate)
