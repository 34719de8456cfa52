"""How machines are named: one rule for the configuration, keys, addresses, folders, and subjects on the server."""

from __future__ import annotations

import re

# A name is a word of a subject, a folder, the id of an agent, and what keys and addresses begin with; so it begins with
# no hyphen, which would be an option where it is given on a command line.
MACHINE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
