"""The daemon's socket path and the token to use, from arguments and the environment. Connects to nothing."""

from __future__ import annotations

import os

from sessiond.client.ancestry import SOCKET, TOKEN_FILE, run_environment
from sessiond.client.errors import BadEnvironment

# sun_path holds 108 bytes with its final NUL; the system's error for a longer path would not say so.
MAX_SOCKET_PATH_BYTES = 107
# Where systemd puts XDG_RUNTIME_DIR.
_USER_RUNTIME = f"/run/user/{os.getuid()}"


def store_folder() -> str:
    """The store's folder for this environment: $SESSIOND_STORE, else `sessiond` in the XDG state folder."""
    given = os.environ.get("SESSIOND_STORE")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    state = os.environ.get("XDG_STATE_HOME")
    if not state or not os.path.isabs(state):  # the XDG specification requires relative paths to be ignored
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "sessiond")


def socket_candidates(user_runtime: str = _USER_RUNTIME) -> list[str]:
    """The paths at which a daemon of this user may listen, the most likely one first."""
    given = run_environment().get(SOCKET)
    if given:
        return [os.path.expanduser(given)]
    # Cron, `su` and the tool servers of some programs have no XDG_RUNTIME_DIR, but the daemon had this one.
    runtimes = dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR") or user_runtime, user_runtime))
    candidates = [os.path.join(runtime, "sessiond", "sessiond.sock") for runtime in runtimes]
    in_store = os.path.join(store_folder(), "run", "sessiond.sock")
    return [*candidates, in_store] if os.environ.get("XDG_RUNTIME_DIR") else [in_store, *candidates]


def socket_path(given: str | None = None, *, user_runtime: str = _USER_RUNTIME) -> str:
    """The path to connect to: `given`, else the first candidate that exists, else the first candidate."""
    if given:
        path = os.path.expanduser(given)
    else:
        candidates = socket_candidates(user_runtime)
        path = next((place for place in candidates if os.path.exists(place)), candidates[0])
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise BadEnvironment(
            f"the socket's path is {size} bytes long, a Unix socket takes {MAX_SOCKET_PATH_BYTES}: {path}\n"
            "set SESSIOND_SOCKET to a shorter one"
        )
    return path


def has_token_file() -> bool:
    """Whether the environment names a token file, because this process is part of a run or was given a token."""
    return bool(run_environment().get(TOKEN_FILE))


def find_token(given: str | None = None) -> str | None:
    """The token to use: `given`, else the content of $SESSIOND_TOKEN_FILE, else None (the owner needs none).

    BadEnvironment where the file cannot be read or is empty.
    """
    if given:
        return given
    path = run_environment().get(TOKEN_FILE)
    if not path:
        return None
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise BadEnvironment(f"cannot read the token in {path} (SESSIOND_TOKEN_FILE): {why}") from None
    if not text:
        raise BadEnvironment(f"the token file {path} (SESSIOND_TOKEN_FILE) is empty: no run goes on that it is for")
    return text
