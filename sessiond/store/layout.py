"""Every path inside the store, and the permitted names. Knows names only; opens nothing."""

from __future__ import annotations

from sessiond.model.keys import AGENT_ID, SESSION_ID

FORMAT = 1
STORE_FILE = "store.json"
LOCK_FILE = "store.lock"
KEYS = "keys"
SIGNING_KEY = "signing.key"
# The identity of this machine among others, and what `sessiond link` keeps.
LINK_KEY = "link.key"
LINK = "link"
AGENTS = "agents"
SESSIONS = "sessions"
ARCHIVE = "archive"
INDEX = "sessions.json"
DAMAGED_INDEX = "sessions.json.damaged"
OUTBOX = "outbox"
RUN = "run"
RUNS = "runs"
SPAWNING = "spawning"
TOKENS = "tokens.jsonl"
BACKUPS = "backups"
# What is kept of the sessions of other programs; it may be deleted at any time.
CACHE = "cache"
# Their files, which are links that outlive those of the programs.
KEPT = "kept"
# Copies of the transcripts of other machines, written by `sessiond link`: <machine>/agents/<agent>/sessions/<id>.jsonl.
MACHINES = "machines"
SUFFIX = ".jsonl"
GIT_IGNORE = ".gitignore"
# A store may be a git working tree; these are ignored.
GIT = ".git"
GIT_FILES = (GIT_IGNORE, ".gitattributes", ".mailmap")
# Written into a new store, so that `git add -A` adds no keys.
IGNORED_BY_GIT = """\
# From sessiond, for a store that is kept in git: what is secret, of this machine alone, or made again from the
# transcripts. Change it as you like; it is not written again.
/keys/
/tokens.jsonl
/store.lock
/run/
/outbox/
/spawning/
/backups/
/cache/
/link/
/machines/
/agents/*/workspace/
sessions.json
sessions.json.damaged*
.tmp-*
"""
# A delivery is one text, and the index of ten thousand sessions has 10 MB. Larger files are not the daemon's, and are
# not read into memory.
MAX_DELIVERY_BYTES = 32 * 1024 * 1024
MAX_INDEX_BYTES = 256 * 1024 * 1024
# 200,000 tokens and their revocations; read when the first token is used, before anything else is done.
MAX_TOKENS_BYTES = 64 * 1024 * 1024


def session_id_of(file_name: str) -> str | None:
    """The session id of a transcript's file name, None for any other file."""
    if not file_name.endswith(SUFFIX):
        return None
    stem = file_name[: -len(SUFFIX)]
    # Session ids in keys are in lower case, but files of other programs may be named otherwise; the name is kept.
    return stem if SESSION_ID.fullmatch(stem.lower()) else None


def is_agent_folder(name: str) -> bool:
    """Whether a folder name below `agents/` is an agent id."""
    return AGENT_ID.fullmatch(name) is not None


def transcript_path(agent_id: str, session_id: str, *, archived: bool = False) -> str:
    """A transcript's path relative to the store, as rows show it."""
    folder = f"{AGENTS}/{agent_id}/{SESSIONS}"
    return f"{folder}/{ARCHIVE}/{session_id}{SUFFIX}" if archived else f"{folder}/{session_id}{SUFFIX}"
