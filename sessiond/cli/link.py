"""`sessiond link`: this machine and others, joined through a NATS server. Each verb is in a module of `link_verbs`."""

from __future__ import annotations

from sessiond.cli.frame.command import Command
from sessiond.cli.link_verbs import administration, identities, running, sharing

COMMAND = Command(
    "link",
    "Link daemons of several machines: read each other's sessions, send to them, spawn agents there.",
    subcommands=(
        identities.IDENTITY,
        identities.PEER,
        administration.ADMIN,
        administration.CHECK,
        running.RUN,
        running.STATUS,
        sharing.SHARE,
        sharing.UNSHARE,
    ),
    examples=("sessiond link identity", "sessiond link check", "sessiond link run"),
)
