import os
import socket
import stat
import subprocess
import sys

import pytest
from support.rows import check_each
from support.sampling import spread

from sessiond.errors import ConfigError
from sessiond.transports.listener import (
    SocketPaths,
    bind_tcp,
    bind_unix,
    check_length,
    open_listeners,
    prepare_folder,
    socket_paths,
    take_inherited,
)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def refusal(call, *args, **named):
    with pytest.raises(ConfigError) as caught:
        call(*args, **named)
    return str(caught.value)


def test_the_sockets_are_where_the_environment_says(folder):
    store = folder / "store"
    runtime = {"XDG_RUNTIME_DIR": str(folder)}
    assert socket_paths({"SESSIOND_SOCKET": "/x/y.sock", **runtime}, store) == SocketPaths(
        folder.__class__("/x/y.sock"), folder.__class__("/x/agent.sock"), False
    )
    in_runtime = folder / "sessiond"
    assert socket_paths(runtime, store) == SocketPaths(in_runtime / "sessiond.sock", in_runtime / "agent.sock", True)
    in_store = SocketPaths(store / "run/sessiond.sock", store / "run/agent.sock", True)
    for environ in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}, {"XDG_RUNTIME_DIR": "/no/such"}):
        assert socket_paths(environ, store) == in_store
    assert "agent.sock is the name" in refusal(socket_paths, {"SESSIOND_SOCKET": "/x/agent.sock"}, store)


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_the_folder_and_the_sockets_are_private_whatever_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        opened = open_listeners({"XDG_RUNTIME_DIR": str(folder)}, folder / "store")
    finally:
        os.umask(before)
    assert [(listener.name, mode(listener.path)) for listener in opened] == [("sessiond", 0o600), ("agent", 0o600)]
    assert mode(folder / "sessiond") == 0o700
    for listener in opened:
        listener.close()
    assert list((folder / "sessiond").iterdir()) == []


def test_permissions_are_fixed_on_the_default_folder_and_refused_on_a_chosen_one(folder):
    own = folder / "own"
    own.mkdir()
    own.chmod(0o755)
    assert refusal(prepare_folder, own, private=False) == (
        f"{own}: others may enter the folder of the sockets; run chmod 700 {own}."
    )
    assert mode(own) == 0o755
    prepare_folder(own, private=True)
    assert mode(own) == 0o700
    prepare_folder(own, private=False)


def test_for_a_shared_folder_the_advice_is_to_choose_another_not_to_chmod_it(folder):
    shared = folder / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert refusal(prepare_folder, shared, private=False) == (
        f"{shared}: others may enter the folder of the sockets; choose one that is not shared, such as"
        f" SESSIOND_SOCKET={shared}/sessiond/sessiond.sock."
    )
    prepare_folder(shared / "sessiond", private=False)
    assert (mode(shared), mode(shared / "sessiond")) == (0o1777, 0o700)


def test_a_folder_that_is_a_link_or_a_file_is_refused(folder):
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to("real")
    (folder / "file").touch()
    for name in ("link", "file"):
        assert "a symbolic link or no folder" in refusal(prepare_folder, folder / name, private=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(folder):
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, -1)
    assert "belongs to another user (uid 12345)" in refusal(prepare_folder, theirs, private=True)


def test_a_socket_path_may_have_107_bytes_and_not_108(folder):
    fits = folder / ("s" * (107 - len(str(folder)) - 1))
    check_length(fits)
    bind_unix(fits, "sessiond").close()
    over = fits.with_name(fits.name + "s")
    assert refusal(check_length, over) == (
        f"{over}: the path of a socket may have 107 bytes, this one has 108; choose a shorter one with SESSIOND_SOCKET."
    )
    environ = {"SESSIOND_SOCKET": str(over)}
    assert "107 bytes" in refusal(open_listeners, environ, folder)


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(folder):
    path = folder / "s.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    live = bind_unix(path, "sessiond")
    assert "another program answers there" in refusal(bind_unix, path, "sessiond")
    live.close()
    path.write_text("precious")
    assert "this is no socket" in refusal(bind_unix, path, "sessiond")
    assert path.read_text() == "precious"


def test_a_socket_file_that_another_process_replaced_is_not_removed(folder):
    path = folder / "s.sock"
    first = bind_unix(path, "sessiond")
    path.unlink()
    second = bind_unix(path, "sessiond")
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()
    second.close()


def test_no_socket_is_left_behind_when_the_second_cannot_be_made(folder):
    (folder / "agent.sock").write_text("in the way")
    assert "agent.sock" in refusal(open_listeners, {"SESSIOND_SOCKET": str(folder / "s.sock")}, folder)
    assert [path.name for path in folder.iterdir()] == ["agent.sock"]


@check_each(
    "listen",
    ["0.0.0.0:1", "192.168.0.1:80", "[::]:80", "example.org:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", ""],
)
def test_only_loopback_addresses_can_be_listened_on(listen):
    assert refusal(bind_tcp, listen).startswith(f"http.listen = {listen!r}")


@pytest.mark.parametrize(("listen", "address"), [("127.0.0.1:0", "127.0.0.1"), ("localhost:0", "127.0.0.1")])
def test_port_zero_takes_any_free_port(listen, address):
    listener = bind_tcp(listen)
    assert (listener.address[0], listener.address[1] > 0) == (address, True)
    assert "in use" in refusal(bind_tcp, f"127.0.0.1:{listener.address[1]}")
    listener.close()


def test_listen_variables_with_another_pid_are_ignored():
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "sessiond:agent", "HOME": "/"}
    assert (take_inherited(environ, 2), environ) == ({}, {"HOME": "/"})


ACTIVATED = """
import os, sys
from pathlib import Path
from sessiond.transports.listener import open_listeners
from sessiond.errors import ConfigError
os.environ["LISTEN_PID"] = str(os.getpid())
try:
    opened = open_listeners(os.environ, Path(sys.argv[1]) / "store")
except ConfigError as error:
    print(error)
else:
    print([(one.name, one.path.name, one.file_id is None, one.socket.get_inheritable()) for one in opened],
        [name for name in os.environ if name.startswith("LISTEN")])
    for one in opened: one.close()
"""


def run_activated(folder, names, count, files=("one.sock", "two.sock")):
    """What a process prints that is started as systemd does it, with sockets at descriptors 3 and 4."""
    socks = []
    for name in files:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(folder / name))
        sock.listen()
        socks.append(sock)

    def hand_over():
        kept = [os.dup(sock.fileno()) for sock in socks]
        high = [os.dup2(descriptor, 50 + index) for index, descriptor in enumerate(kept)]
        for index, descriptor in enumerate(high):
            os.dup2(descriptor, 3 + index)

    environ = {**os.environ, "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names, "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", ACTIVATED, folder],
        preexec_fn=hand_over,
        close_fds=False,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    for sock in socks:
        sock.close()
    return done.stdout.strip()


def test_sockets_from_systemd_are_matched_by_name_and_never_unlinked(folder):
    assert run_activated(folder, "agent:sessiond", 2) == (
        "[('agent', 'one.sock', True, False), ('sessiond', 'two.sock', True, False)] []"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["one.sock", "two.sock"]


def test_a_socket_that_systemd_does_not_pass_is_created(folder):
    assert run_activated(folder, "agent", 1) == (
        "[('agent', 'one.sock', True, False), ('sessiond', 'sessiond.sock', False, False)] []"
    )


@pytest.mark.parametrize("names", spread(["sessiond:web", "", "sessiond:sessiond"], 1))
def test_a_socket_from_systemd_with_an_unknown_name_is_refused(folder, names):
    assert "FileDescriptorName= must be" in run_activated(folder, names, 2)
