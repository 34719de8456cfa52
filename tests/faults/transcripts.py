"""Transcripts as a reader finds them who knows nothing of sessiond's code: lines of JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FINAL = {"ok", "error", "timeout", "aborted"}
# A run that is one record, since it ran as a part of another or was none: what it would have been asked is there.
ALONE = {"steered", "noted"}


class Transcript:
    """One transcript as its lines are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archived = path.parent.name == "archive"
        self.records: list[dict[str, Any]] = []
        self.bad = 0
        for line in path.read_bytes().split(b"\n"):
            if line.strip():
                try:
                    self.records.append(json.loads(line))
                except ValueError:
                    self.bad += 1

    @property
    def key(self) -> Any:
        return self.records[0].get("sessionKey") if self.records else None

    def customs(self, kind: str) -> list[dict[str, Any]]:
        return [one["data"] for one in self.records if one.get("customType") == kind]

    def said(self, text: str) -> int:
        """How often a user, or another session of its own accord, said just this."""
        return sum(
            words(one["message"]).split("\n")[0] == text
            for one in self.records
            if one["type"] == "message" and one["message"]["role"] == "user" and not _answers(one["message"])
        )

    @property
    def waits(self) -> bool:
        """Whether something of it goes on by itself: a run, a conversation, or a child that was not announced."""
        open_runs = {one["runId"] for one in self.customs("sessiond/run")} - {
            one["runId"] for one in self.customs("sessiond/run") if one["status"] in (*FINAL, *ALONE)
        }
        talks = Counter(one["talkId"] for one in self.customs("sessiond/talk") if one["status"] in ("open", "closed"))
        child = ":subagent:" in str(self.key) and not self.archived and not self._is_put_away
        return bool(open_runs) or any(count % 2 for count in talks.values()) or child

    @property
    def _is_put_away(self) -> bool:
        """Whether a child was announced, its files are gone and its session is to stay where it is."""
        spawn: dict[str, Any] = {}
        for data in self.customs("sessiond/entry"):
            spawn |= data.get("spawn") or {}
        files_stay = bool(spawn.get("attachments")) and not spawn.get("attachmentsRemoved")
        return "announced" in spawn and not files_stay and spawn.get("cleanup") != "delete"


def _answers(message: dict[str, Any]) -> bool:
    provenance = message.get("provenance", {})
    return provenance.get("sourceTool") == "subagent_announce" or provenance.get("hops", 0) > 1


def words(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def transcripts(store: Path) -> list[Transcript]:
    return [Transcript(path) for path in sorted((store / "agents").glob("*/sessions/**/*.jsonl"))]
