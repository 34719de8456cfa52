"""The answer of a tool as text, for clients that show the model the text and not the structured content."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from sessiond.errors import pluralize

Result = dict[str, Any]

# Bounds of one message (about a thousand words) and of the whole text, so that it fits a model's context.
MESSAGE_CHARS = 6_000
TEXT_CHARS = 60_000


def words(tool: str, result: Result) -> str:
    """The answer of a tool as text."""
    return _BY_TOOL[tool](result)


def _sessions(result: Result) -> str:
    rows = result["sessions"]
    more = f"; more with cursor {result['nextCursor']}" if result.get("nextCursor") else ""
    missed = result.get("partial")
    more += f"; {pluralize(missed, 'session')} not read whole yet may be missing" if missed else ""
    head = f"{pluralize(len(rows), 'session')} (visibility: {result['visibility']}{more})"
    lines = [head]
    for row in rows:
        count = pluralize(row.get("messageCount", 0), "message") if not row.get("partial") else "not read whole yet"
        title = row.get("title") if row.get("title") != row.get("displayName") else None
        facts = [row.get("label"), row.get("displayName"), title, row.get("cwd"), row.get("status"), count]
        lines.append(f"{row['key']}: {', '.join(str(fact) for fact in facts if fact)}, {_time(row['updatedAt'])}")
        lines += [f"    {_line(message, 300)}" for message in row.get("messages") or ()]
    return _bound_lines(lines)


def _history(result: Result) -> str:
    messages = result["messages"]
    more = f"; older ones with cursor {result['nextCursor']}" if result.get("nextCursor") else ""
    head = f"{result['sessionKey']}: {pluralize(len(messages), 'message')}{more}"
    return _bound_lines([head, *(_line(message, MESSAGE_CHARS) for message in messages)], keep_end=True)


def _send_words(result: Result) -> str:
    run_id = result.get("runId")
    match result["status"]:
        case "ok":
            return result.get("reply") or f"{result['sessionKey']} did its work and replied nothing."
        case "timeout":
            return (
                f"No reply from {result['sessionKey']} yet ({result.get('error', 'the wait ended')}). Its agent goes on"
                f" working: wait on with sessions_wait and runId {run_id}."
            )
        case "error":
            return f"{result['sessionKey']} could not do it: {result.get('error', 'unknown')}"
    if result.get("reason") == "inbox":
        return (
            f"Kept in the inbox of {result['sessionKey']}, which is an interactive program. It answers when it looks;"
            " its answer will be in your sessions_inbox."
        )
    reason = f" ({result['reason']})" if result.get("reason") else ""
    return f"Accepted by {result['sessionKey']}, not waited for{reason}. sessions_wait with runId {run_id} has its end."


def _spawn_words(result: Result) -> str:
    files = result.get("attachments")
    given = f" It has {pluralize(files['count'], 'file')} in {files['relDir']}." if files else ""
    run_id = result["runId"]
    return f"Started {result['childSessionKey']}.{given} sessions_wait with runId {run_id} waits for its result."


def _agents(result: Result) -> str:
    lines = [f"You are of agent {result['requester']}."]
    for agent in result["agents"]:
        facts = [agent.get("name"), agent["runtime"], "sandboxed" if agent["sandboxed"] else None]
        lines.append(f"{agent['id']}: {', '.join(fact for fact in facts if fact)}")
    return "\n".join(lines)


def _search_words(result: Result) -> str:
    more = f"; more with cursor {result['nextCursor']}" if result.get("nextCursor") else ""
    lines = [f"{pluralize(len(result['matches']), 'match', 'matches')}{more}"]
    for match in result["matches"]:
        name = match.get("sessionId") or match["sessionKey"]
        lines.append(f"{name}, {match['role']}, {_time(match['timestamp'])}: {match['snippet']}")
    return _bound_lines(lines)


def _wait_words(result: Result) -> str:
    match result["status"]:
        case "ok":
            return result.get("reply") or "The run ended well and replied nothing."
        case "running":
            return f"The run goes on; wait again with runId {result['runId']}."
        case status:
            return f"The run ended without a reply: {result.get('error') or status}"


def _inbox(result: Result) -> str:
    messages = result["messages"]
    shown = messages[: count_shown(messages)]
    more = "; there are more: call again" if result["hasMore"] or len(shown) < len(messages) else ""
    lines = [f"{pluralize(len(shown), 'message')} to {result['sessionKey']}{more}"]
    return "\n".join([*lines, *map(_inbox_message, shown)])


def count_shown(messages: list[Result]) -> int:
    """How many messages, from the oldest on, fit into one text; at least one."""
    room = TEXT_CHARS
    for number, message in enumerate(messages):
        room -= len(_inbox_message(message))
        if room < 0 and number:
            return number
    return len(messages)


def _inbox_message(message: Result) -> str:
    sender = message.get("from", "the owner")
    return f"--- from {sender}, {message.get('timestamp', '')}\n{_cut(message['text'], MESSAGE_CHARS)}"


def _questions(result: Result) -> str:
    questions = result["questions"]
    lines = [pluralize(len(questions), "question")]
    for question in questions:
        title = question.get("title", "")
        lines.append(f"{question['id']} ({question['status']}), asked by {question['sessionKey']}: {title}")
        lines += [f"    > {line}" for line in _cut(question.get("detail") or "", MESSAGE_CHARS).splitlines()]
        lines += [f"    {json.dumps(one['id'])}: {one['label']} ({one['kind']})" for one in question["options"]]
        if question.get("answer"):
            lines.append(f"    it ended: {_end_of_question(question['answer'])}")
    return _bound_lines(lines)


def _end_of_question(answer: Result) -> str:
    facts = [answer["outcome"], answer.get("optionId"), answer.get("by"), answer.get("note"), answer.get("reason")]
    return ", ".join(str(fact) for fact in facts if fact)


def _answer_words(result: Result) -> str:
    return f"Answered {result['id']} with {json.dumps(result['optionId'])}; the agent goes on."


_BY_TOOL: dict[str, Callable[[Result], str]] = {
    "sessions_list": _sessions,
    "sessions_history": _history,
    "sessions_send": _send_words,
    "sessions_spawn": _spawn_words,
    "agents_list": _agents,
    "sessions_search": _search_words,
    "sessions_wait": _wait_words,
    "sessions_inbox": _inbox,
    "questions_list": _questions,
    "questions_answer": _answer_words,
}


def _line(message: Any, limit: int) -> str:
    """A message as `role: text`. It may be any JSON value, as it stands in the transcript."""
    if not isinstance(message, dict):
        return _cut(str(message), limit)
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    return f"{message.get('role')}: {_cut(' '.join(_block(block) for block in blocks), limit)}"


def _block(block: Any) -> str:
    if isinstance(block, str):
        return block
    if not isinstance(block, dict):
        return ""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "toolCall":
            return f"[calls {block.get('name')}]"
        case "thinking":
            return ""
        case kind:
            return f"[{kind}]"


def _cut(text: str, limit: int) -> str:
    left = len(text) - limit
    return text if left <= 0 else f"{text[:limit]} [… {left} more characters, see the structured content]"


def _bound_lines(lines: Iterable[str], *, keep_end: bool = False) -> str:
    """The first line and as many others as fit into TEXT_CHARS: the first ones, or with `keep_end` the last ones."""
    head, *rest = lines
    kept: list[str] = []
    room = TEXT_CHARS
    for line in reversed(rest) if keep_end else rest:
        room -= len(line)
        if room < 0:
            break
        kept.append(line)
    if keep_end:
        kept.reverse()
    left = len(rest) - len(kept)
    note = [f"[… {left} more, see the structured content or ask for fewer]"] if left else []
    return "\n".join([head, *note, *kept] if keep_end else [head, *kept, *note])


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
