"""Whether the user's services keep running after the last log-out. Reads systemd's files; does not call systemd."""

from __future__ import annotations

import os

LINGER_FOLDER = "/var/lib/systemd/linger"
BOOTED = "/run/systemd/system"


def advice(linger_folder: str = LINGER_FOLDER, booted: str = BOOTED) -> str | None:
    """A sentence if systemd manages this user's services and would end them at log-out, else None."""
    if not os.path.isdir(booted) or not os.environ.get("XDG_RUNTIME_DIR"):
        return None
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
    if os.path.exists(os.path.join(linger_folder, user)):
        return None
    return f"lingering is off: systemd ends sessiond at your last log-out; keep it with: loginctl enable-linger {user}"
