"""A reader of transcripts that uses none of sessiond's code: lines of JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FINAL = {"ok", "error", "timeout", "aborted"}
# Runs of one record: `steered` messages became part of another run, and `noted` ones did not start a run.
ALONE = {"steered", "noted"}


class Transcript:
    """The records of one transcript, and the number of bad lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archived = path.parent.name == "archive"
        self.records: list[dict[str, Any]] = []
        self.bad = 0
        for line in path.read_bytes().split(b"\n"):
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                # What is left of a record that was blanked out in part may be a JSON text.
                if isinstance(record, dict):
                    self.records.append(record)
                else:
                    self.bad += 1

    @property
    def key(self) -> Any:
        return self.records[0].get("sessionKey") if self.records else None

    def data_of(self, kind: str) -> list[dict[str, Any]]:
        return [one["data"] for one in self.records if one.get("customType") == kind]

    def count_texts(self, text: str) -> int:
        """The number of messages with this text from a user or, unasked, from another session."""
        return sum(
            text_of(one["message"]).split("\n")[0] == text
            for one in self.records
            if one["type"] == "message" and one["message"]["role"] == "user" and not _is_answer(one["message"])
        )

    @property
    def has_open_work(self) -> bool:
        """Whether there is an open run or conversation, or a child that was not announced."""
        open_runs = {one["runId"] for one in self.data_of("sessiond/run")} - {
            one["runId"] for one in self.data_of("sessiond/run") if one["status"] in (*FINAL, *ALONE)
        }
        records_of_conversations = Counter(
            one["talkId"] for one in self.data_of("sessiond/talk") if one["status"] in ("open", "closed")
        )
        child = ":subagent:" in str(self.key) and not self.archived and not self._is_settled
        return bool(open_runs) or any(count % 2 for count in records_of_conversations.values()) or child

    @property
    def _is_settled(self) -> bool:
        """Whether a child was announced, its files are removed and its session stays."""
        spawn: dict[str, Any] = {}
        for data in self.data_of("sessiond/entry"):
            spawn |= data.get("spawn") or {}
        files_stay = bool(spawn.get("attachments")) and not spawn.get("attachmentsRemoved")
        return "announced" in spawn and not files_stay and spawn.get("cleanup") != "delete"


def _is_answer(message: dict[str, Any]) -> bool:
    provenance = message.get("provenance", {})
    return provenance.get("sourceTool") == "subagent_announce" or provenance.get("hops", 0) > 1


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def transcripts(store: Path) -> list[Transcript]:
    return [Transcript(path) for path in sorted((store / "agents").glob("*/sessions/**/*.jsonl"))]
