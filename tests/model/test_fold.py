"""The fold: the same lines give the same entry, whoever wrote them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.rows import check_each

from sessiond.model import record as records
from sessiond.model.entry import MAX_OPEN_RUNS, Entry, FileFacts, KeyedRun, LiveRun, Spawn
from sessiond.model.fold import MAX_KEYED_RUNS, fold, fold_bad_line, ineffective_reason
from sessiond.model.keys import SOURCES
from sessiond.model.patching import merge_patch, patch_entry

T = 1795224660000
MTIME = 1795224999000
EMPTY = Entry(session_id="s")


def fold_lines(*bodies: dict[str, Any], entry: Entry = EMPTY, offset: int = 0) -> Entry:
    """The entry after these lines; the first one begins at `offset`."""
    for body in bodies:
        line = json.dumps(body).encode()
        entry = fold(entry, records.parse(line), offset, MTIME)
        offset += len(line) + 1
    return entry


def iso_time(ms: int) -> str:
    return records.iso_ms(ms)


def message(ms: int, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"type": "message", "timestamp": iso_time(ms), "message": {"role": role, "content": "x", **more}}


def patch(**data: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": records.ENTRY, "data": data}


def run(run_id: str, status: str, at: Any, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": records.RUN, "data": {"runId": run_id, "status": status, "at": at, **more}}


HEADER = {
    "type": "session",
    "version": 3,
    "id": "s",
    "timestamp": iso_time(T),
    "cwd": "/w",
    "sessionKey": "agent:main:main",
    "agentId": "main",
    "spawnedBy": "agent:main:boss",
}
BEGUN = Entry(
    session_id="s",
    session_key="agent:main:main",
    spawned_by="agent:main:boss",
    cwd="/w",
    created_at=T,
    updated_at=T,
)


def test_the_header_gives_key_parent_folder_and_time():
    assert fold_lines(HEADER) == BEGUN


def test_a_header_is_ignored_unless_it_is_the_first_line():
    assert fold_lines(HEADER, {**HEADER, "sessionKey": "agent:main:other"}) == BEGUN
    assert fold_lines(HEADER, offset=10) == EMPTY


def test_a_header_without_a_time_uses_the_files_mtime():
    assert fold_lines({"type": "session"}) == replace(EMPTY, created_at=MTIME, updated_at=MTIME)


def test_updated_at_is_the_time_of_the_newest_message_and_of_nothing_else():
    late = {"type": "model_change", "timestamp": iso_time(T + 9000), "provider": "p", "modelId": "m"}
    assert fold_lines(HEADER, message(T + 2000), message(T + 1000), late) == replace(
        BEGUN, updated_at=T + 2000, disorder_ms=1000, message_count=2, task="x", model="m", model_provider="p"
    )


def test_disorder_is_how_far_a_message_lies_behind_the_newest_before_it():
    untimed = {"type": "message", "message": {"role": "user", "content": "x"}}
    assert fold_lines(HEADER, message(T + 1000), message(T + 2000), message(T + 2000)).disorder_ms == 0
    assert fold_lines(HEADER, *(message(T + 1000 * at) for at in (5, 3, 6, 4, 5))).disorder_ms == 2000
    # A message without a time counts as if it were of the session's beginning.
    assert fold_lines(HEADER, message(MTIME + 7000), untimed).disorder_ms == MTIME + 7000 - T


def test_updated_at_is_the_messages_time_even_if_older_than_the_header():
    assert fold_lines(HEADER, message(T - 5000)).updated_at == T - 5000


def test_a_message_without_a_time_uses_the_files_mtime():
    assert fold_lines({"type": "message", "message": {"role": "user"}}).updated_at == MTIME


def usage(**more: Any) -> dict[str, Any]:
    return {"input": 10, "output": 5, "cacheRead": 3, "cacheWrite": 2, "totalTokens": 20, **more}


def test_usage_is_added_up_and_the_last_total_is_the_size_of_the_context():
    first = message(T, "assistant", model="m1", provider="p1", usage=usage(cost={"total": 0.5}))
    second = message(T, "assistant", model="m2", usage=usage(totalTokens=30, cost={"total": 0.25}))
    entry = fold_lines(first, second)
    assert entry == replace(
        EMPTY,
        updated_at=T,
        message_count=2,
        model="m2",
        model_provider="p1",
        input_tokens=20,
        output_tokens=10,
        cache_read=6,
        cache_write=4,
        total_tokens=30,
        estimated_cost_usd=0.75,
        usage=entry.usage,
    )
    # By day and model; `test_usage_rows.py` tests the rest of it.
    assert entry.usage is not None
    assert [(row.model, row.cost, *row.counts) for row in entry.usage.rows] == [
        ("m1", 0.5, 10, 5, 3, 2, 20),
        ("m2", 0.25, 10, 5, 3, 2, 30),
    ]


def test_an_injected_message_without_usage_does_not_set_the_model():
    zero = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}
    entry = fold_lines(message(T, "assistant", model="gateway-injected", provider="openclaw", usage=zero))
    assert entry == replace(EMPTY, updated_at=T, message_count=1)


def test_a_missing_token_total_is_the_sum_of_its_parts():
    entry = fold_lines(message(T, "assistant", usage={"input": 10, "output": 5, "cacheRead": 3}))
    assert entry.total_tokens == 18


@check_each(
    "bad",
    [
        None,
        "usage",
        [],
        {},
        {"input": {}},
        {"input": "nan", "output": 1},
        {"input": "inf"},
        {"input": -1, "output": 5},
        {"totalTokens": 1e300},
    ],
)
def test_malformed_usage_counts_nothing(bad):
    assert fold_lines(message(T, "assistant", usage=bad)) == replace(EMPTY, updated_at=T, message_count=1)


@check_each("cost", [None, "1", True, -1, 1e300, {"total": "1"}, {"total": None}, [1]])
def test_a_malformed_cost_is_not_added(cost):
    entry = fold_lines(message(T, "assistant", usage=usage(cost=cost)))
    assert (entry.estimated_cost_usd, entry.total_tokens) == (None, 20)


@check_each(
    ("line", "entry"),
    [
        ({"type": "thinking_level_change", "thinkingLevel": "low"}, {"thinking_level": "low"}),
        ({"type": "thinking_level_change", "thinkingLevel": 5}, {"thinking_level": None}),
        ({"type": "session_info", "name": "Kitchen"}, {"display_name": "Kitchen"}),
        ({"type": "session_info", "name": ""}, {"display_name": "before"}),
        ({"type": "compaction", "summary": "x", "tokensBefore": 5}, {}),
        ({"type": "invented", "anything": [1]}, {}),
        ({"type": "custom", "customType": "model-snapshot", "data": {"label": "x"}}, {}),
    ],
)
def test_other_record_types_set_their_fields(line, entry):
    start = replace(EMPTY, display_name="before", thinking_level="high")
    assert fold_lines(line, entry=start) == replace(start, **entry)


def test_a_patch_sets_fields_and_null_clears_them():
    entry = fold_lines(
        patch(label="kitchen", model="m", contextTokens=5, sandboxed=True, spawnDepth=2, estimatedCostUsd=1),
        patch(model=None, contextTokens=None),
    )
    assert entry == replace(EMPTY, label="kitchen", sandboxed=True, spawn_depth=2, estimated_cost_usd=1.0)


def test_a_patch_merges_into_objects():
    entry = fold_lines(
        patch(deliveryContext={"channel": "telegram", "to": "1", "more": {"a": 1, "b": 2}}),
        patch(deliveryContext={"to": None, "accountId": "x", "more": {"a": None}}),
    )
    assert entry.delivery_context == {"channel": "telegram", "accountId": "x", "more": {"b": 2}}


@check_each(
    ("target", "change", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_passes_the_test_cases_of_rfc_7386_appendix_a(target, change, result):
    assert merge_patch(target, change) == result


def test_a_patch_value_of_a_wrong_type_is_ignored_and_the_others_are_applied():
    start = replace(EMPTY, label="old", context_tokens=5)
    assert fold_lines(patch(label=7, contextTokens="many", model="m"), entry=start) == replace(start, model="m")


@check_each("source", SOURCES)
def test_a_record_says_whose_session_is_continued(source):
    key = f"{source}:0e8-Ab.c_"
    assert fold_lines(HEADER, patch(continues=key)).continues == key


# What is continued comes into the arguments of a program.
NO_FOREIGN_KEYS = (
    "agent:main:x",
    "other:abc",
    "claude:",
    "claude:--evil",
    "claude:a b",
    "claude:a\n",
    " claude:a",
    5,
    [],
)


def test_anything_else_is_not_continued():
    for value in NO_FOREIGN_KEYS:
        entry = fold_lines(HEADER, patch(continues="claude:abc", label="x"), patch(continues=value, label="y"))
        assert (entry.continues, entry.label) == ("claude:abc", "y"), value
    assert fold_lines(HEADER, patch(continues="claude:abc"), patch(continues=None)).continues is None


@check_each("value", [2**53 + 2, -(2**60), 10**40])
def test_a_patch_number_beyond_2_to_the_53_is_ignored(value):
    assert fold_lines(patch(contextTokens=value, estimatedCostUsd=float(value))) == EMPTY


def test_a_patch_cannot_change_fields_derived_from_the_file():
    forged = {
        "sessionId": "x",
        "updatedAt": 1,
        "createdAt": 1,
        "messageCount": 9,
        "corruptRecords": 9,
        "runs": [{"runId": "r", "offset": 0}],
        "keyed": [["k", "r", "p"]],
        "file": {"bytes": 1},
        "invented": 1,
    }
    assert fold_lines(patch(**forged)) == EMPTY


@check_each("data", [None, [], "x", 5, {}])
def test_a_patch_that_is_not_an_object_is_ignored(data):
    assert fold_lines({"type": "custom", "customType": records.ENTRY, "data": data}) == EMPTY


def test_an_adopted_file_gets_its_key_and_metadata_from_the_foreign_index():
    entry = fold_lines(
        patch(
            sessionKey="agent:main:main",
            provider="telegram",
            lastProvider="telegram",
            room="-100",
            status="done",
            abortedLastRun=False,
            skillsSnapshot={"big": [1, 2, 3]},
        )
    )
    assert entry == replace(
        EMPTY,
        session_key="agent:main:main",
        channel="telegram",
        last_channel="telegram",
        group_id="-100",
        status="ok",
        aborted_last_run=False,
    )


@pytest.mark.parametrize("data", [{"channel": "a", "provider": "b"}, {"provider": "b", "channel": "a"}])
def test_the_new_name_of_a_field_wins_over_the_old_one(data):
    assert fold_lines(patch(**data)).channel == "a"


@check_each(
    ("word", "status"),
    [
        ("done", "ok"),
        ("failed", "error"),
        ("killed", "aborted"),
        ("timeout", "timeout"),
        ("running", None),
        ("ok", "ok"),
    ],
)
def test_foreign_status_words_are_mapped(word, status):
    assert fold_lines(patch(status=word)).status == status


def test_a_run_goes_from_queued_to_running_to_ended():
    accepted = fold_lines(run("r", "accepted", T), offset=77)
    assert accepted == replace(EMPTY, status="queued", runs=(LiveRun(run_id="r", offset=77, accepted_at=T),))
    running = fold_lines(run("r", "running", T + 5), entry=accepted)
    assert running == replace(
        accepted,
        status="running",
        started_at=T + 5,
        aborted_last_run=False,
        runs=(LiveRun(run_id="r", offset=77, accepted_at=T, started_at=T + 5),),
    )
    ended = fold_lines(run("r", "ok", T + 25, estimatedCostUsd=0.5), entry=running)
    assert ended == replace(
        EMPTY,
        status="ok",
        started_at=T + 5,
        ended_at=T + 25,
        runtime_ms=20,
        aborted_last_run=False,
        estimated_cost_usd=0.5,
    )
    assert fold_lines(run("r", "error", T + 30), entry=ended) == ended


def test_a_run_aborted_while_queued_has_a_runtime_of_zero():
    entry = fold_lines(run("r", "accepted", T), run("r", "aborted", T + 9))
    assert entry == replace(
        EMPTY, status="aborted", started_at=T + 9, ended_at=T + 9, runtime_ms=0, aborted_last_run=True
    )


def test_a_second_run_is_listed_behind_the_running_one():
    entry = fold_lines(
        run("a", "accepted", T), run("a", "running", T), run("b", "accepted", T), run("b", "accepted", T)
    )
    assert (entry.status, [live.run_id for live in entry.runs]) == ("running", ["a", "b"])


@check_each(
    "body",
    [run("r", "ok", T), run("r", "running", T), run("r", "accepted", True), run("r", "accepted", -1), run("r", "x", T)],
)
def test_a_record_of_an_unknown_run_or_without_a_time_is_ignored(body):
    assert fold_lines(body) == EMPTY


def test_the_newest_idempotency_keys_are_remembered_up_to_the_limit():
    bodies = [run(f"r{n}", "accepted", T, idempotencyKey=f"k{n}", payload="p") for n in range(MAX_KEYED_RUNS + 1)]
    full = fold_lines(*bodies[:-1])
    assert (len(full.keyed), full.keyed[0]) == (MAX_KEYED_RUNS, KeyedRun("k0", "r0", "p"))
    over = fold_lines(bodies[-1], entry=full)
    assert (len(over.keyed), over.keyed[0], over.keyed[-1]) == (
        MAX_KEYED_RUNS,
        KeyedRun("k1", "r1", "p"),
        KeyedRun(f"k{MAX_KEYED_RUNS}", f"r{MAX_KEYED_RUNS}", "p"),
    )


def test_the_idempotency_key_of_a_steered_message_is_remembered():
    live = fold_lines(run("r", "accepted", T), run("r", "running", T))
    steered = fold_lines(run("r", "steered", T + 1, idempotencyKey="k", payload="p"), entry=live)
    assert steered == replace(live, keyed=(KeyedRun("k", "r", "p"),))
    assert fold_lines(run("r", "steered", T + 1), entry=live) == live


def test_the_end_record_gives_the_usage_that_no_message_carried():
    live = fold_lines(run("r", "accepted", T), run("r", "running", T))
    end_usage = {"usage": {"input": 3, "output": 4, "totalTokens": 7}, "model": "m"}
    ended = fold_lines(run("r", "ok", T + 1, **end_usage), entry=live)
    assert (ended.input_tokens, ended.output_tokens, ended.total_tokens, ended.model) == (3, 4, 7, "m")
    for odd in ("text", {"input": "nan"}, {"input": -1}, []):
        assert fold_lines(run("r", "ok", T + 1, usage=odd), entry=live).input_tokens is None


def native(**data: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": records.NATIVE, "data": data}


def test_the_agents_own_session_is_the_newest_record_of_it():
    given = fold_lines(native(nativeId="a", required=True, costUsd=0.5, contextTokens=1000))
    assert given == replace(
        EMPTY, native_session_id="a", native_required=True, native_cost_usd=0.5, context_tokens=1000
    )
    # Resumed: it has cost what it had, and was found.
    resumed = fold_lines(native(nativeId="a"), entry=given)
    assert resumed == replace(given, native_required=False)
    assert fold_lines(native(nativeId="b", lost="a", reason="gone"), entry=resumed) == replace(
        resumed, native_session_id="b", native_cost_usd=None
    )
    for odd in ({}, {"nativeId": ""}, {"nativeId": 7}, {"nativeId": "x" * 2000}):
        assert fold_lines(native(**odd), entry=given) == given
    odd = fold_lines(native(nativeId="a", required=1, costUsd="much", contextTokens=-1), entry=resumed)
    assert odd == resumed


def conversation_record(talk_id: Any, status: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": records.CONVERSATION, "data": {"talkId": talk_id, "status": status}}


def test_a_conversation_is_open_until_its_closing_record():
    opened = fold_lines(conversation_record("a", "open"), conversation_record("b", "open"), offset=7)
    assert [one.talk_id for one in opened.talks] == ["a", "b"]
    assert opened.talks[0].offset == 7
    assert fold_lines(conversation_record("a", "open"), entry=opened) == opened
    assert fold_lines(conversation_record("a", "closed"), entry=opened) == replace(opened, talks=opened.talks[1:])


@check_each(("talk_id", "status"), [("x", "closed"), (5, "open"), (None, "open"), ("x", "other"), ("x", 1)])
def test_a_conversation_record_that_changes_nothing_is_ignored(talk_id, status):
    assert fold_lines(conversation_record(talk_id, status)) == EMPTY


def test_a_bad_line_increments_the_corrupt_record_count():
    assert fold_bad_line(replace(EMPTY, corrupt_records=2)) == replace(EMPTY, corrupt_records=3)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WIRE_NAMES = [field.encode_name for field in msgspec.structs.fields(Entry)] + ["provider", "surface", "room", "at"]
anything = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("message")},
        optional={
            "timestamp": st.integers(0, 2**41).map(iso_time) | values,
            "message": st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "toolResult"])},
                optional={
                    "timestamp": values,
                    "model": values,
                    "provider": values,
                    "usage": st.dictionaries(
                        st.sampled_from(["input", "output", "cacheRead", "cacheWrite", "totalTokens", "cost"]), values
                    ),
                },
            ),
        },
    ),
    st.builds(lambda data: patch(**data), st.dictionaries(st.sampled_from(WIRE_NAMES), values, max_size=6)),
    st.builds(
        run,
        st.sampled_from("abc"),
        st.sampled_from(["accepted", "running", "ok", "error", "timeout", "aborted", "x"]),
        st.integers(0, 2**41) | values,
        idempotencyKey=values,
        payload=values,
        estimatedCostUsd=values,
    ),
    st.builds(native, nativeId=st.sampled_from("ab") | values, required=values, costUsd=values, contextTokens=values),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["session", "model_change", "thinking_level_change", "session_info", "other"])},
        optional=dict.fromkeys(("sessionKey", "spawnedBy", "cwd", "modelId", "provider", "name", "timestamp"), values),
    ),
)


@given(st.lists(anything, max_size=12))
def test_any_folded_entry_survives_a_round_trip_through_the_index(bodies):
    offset, entry = 0, EMPTY
    for body in bodies:
        line = json.dumps(body).encode()
        try:
            record = records.parse(line)
        except records.BadLine:
            entry = fold_bad_line(entry)
        else:
            entry = fold(entry, record, offset, MTIME)
        offset += len(line) + 1
    entry = replace(entry, file=FileFacts(bytes=offset, mtime_ns=5, inode=7, folded_to=offset, last_id="x", check=9))
    assert msgspec.json.decode(msgspec.json.encode(entry), type=Entry) == entry
    assert entry.message_count + entry.corrupt_records <= len(bodies)
    assert entry.estimated_cost_usd is None or math.isfinite(entry.estimated_cost_usd)


@given(st.lists(anything, max_size=12), st.data())
def test_folding_on_from_a_saved_entry_gives_the_same_result(bodies, data):
    cuts = data.draw(st.sets(st.integers(0, len(bodies))))
    offset, straight, restarted = 0, EMPTY, EMPTY
    for place, body in enumerate(bodies):
        if place in cuts:
            restarted = msgspec.json.decode(msgspec.json.encode(restarted), type=Entry)
        line = json.dumps(body).encode()
        try:
            record = records.parse(line)
        except records.BadLine:
            straight, restarted = fold_bad_line(straight), fold_bad_line(restarted)
        else:
            straight, restarted = fold(straight, record, offset, MTIME), fold(restarted, record, offset, MTIME)
        offset += len(line) + 1
    assert restarted == straight


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1.5, 2**53 + 1, 10**400, -(10**400), 1e300, T, "r", "ok", "accepted", "running", "open"])
    | st.sampled_from(["\ud83d", "closed", "agent:main:main", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["input", "total", "a"]), inner),
    max_leaves=4,
)
FIELDS = [
    *["runId", "talkId", "status", "at", "usage", "estimatedCostUsd", "idempotencyKey", "payload", "model", "replyId"],
    *["sessionKey", "spawn", "deliveryContext", "label", "startedAt", "endedAt", "runtimeMs", "spawnDepth", "room"],
]
DATA = st.dictionaries(st.sampled_from(FIELDS), HOSTILE, max_size=6) | HOSTILE
RECORDS = st.one_of(
    st.builds(
        lambda kind, data: {"type": "custom", "customType": kind, "data": data},
        st.sampled_from([records.RUN, records.ENTRY, records.CONVERSATION, "x"]),
        DATA,
    ),
    st.builds(
        lambda role, usage, stamp: {"type": "message", "message": {"role": role, "usage": usage, "timestamp": stamp}},
        st.sampled_from(["user", "assistant", "system", 5, None]),
        DATA,
        HOSTILE,
    ),
    st.builds(lambda kind, data: {"type": kind, **data}, HOSTILE, st.dictionaries(st.sampled_from(FIELDS), HOSTILE)),
)


@given(st.lists(RECORDS, max_size=8), st.sampled_from([0, 100]))
def test_any_sequence_of_records_folds_into_an_entry_that_an_index_can_hold(bodies, offset):
    entry = EMPTY
    for body in bodies:
        line = json.dumps(body).encode()
        try:
            record = records.parse(line)
        except records.BadLine:
            entry = fold_bad_line(entry)
        else:
            ineffective_reason(entry, record)
            entry = fold(entry, record, offset, MTIME)
        offset += len(line) + 1
    assert msgspec.json.decode(msgspec.json.encode(entry), type=Entry) == entry


@check_each("status", [[], {}, None, 5, True])
@check_each("wanted", ["sessiond/run", "sessiond/talk"])
def test_a_status_that_is_not_a_string_is_ignored(status, wanted):
    accepted = fold_lines(run("r", "accepted", T))
    body = {"type": "custom", "customType": wanted, "data": {"runId": "r", "talkId": "r", "at": T, "status": status}}
    assert fold_lines(body, entry=accepted) == accepted
    assert ineffective_reason(EMPTY, records.parse(json.dumps(body).encode())) == f"a {wanted} record that says nothing"


def test_an_integer_of_four_hundred_digits_is_ignored():
    huge = int("9" * 400)
    body = patch(contextTokens=huge, estimatedCostUsd=huge, startedAt=huge, label="x", deliveryContext={"to": huge})
    assert fold_lines(body) == replace(EMPTY, label="x", delivery_context={})
    complaint = ineffective_reason(EMPTY, records.parse(json.dumps(body).encode()))
    assert complaint == "a sessiond/entry record with contextTokens, estimatedCostUsd, startedAt of no use"


def test_spawn_fields_of_a_wrong_type_are_ignored():
    wrong = {"mode": 5, "ended": ["r"], "requesterKey": [], "attachments": "x", "cleanup": "delete", "invented": 1}
    assert fold_lines(patch(spawn=wrong)).spawn == Spawn(cleanup="delete")
    assert fold_lines(patch(spawn={"ended": "../../etc/x"})).spawn == Spawn()
    known = fold_lines(patch(spawn={"mode": "run", "requesterKey": "agent:main:main", "attachments": {"relDir": "a"}}))
    assert fold_lines(patch(spawn={"ended": "s.0123", "attachments": None}), entry=known).spawn == Spawn(
        mode="run", requester_key="agent:main:main", ended="s.0123"
    )


def test_sums_are_capped_at_what_an_index_can_hold():
    most = {"input": 2**53, "output": 2**53, "cost": 2.0**53}
    entry = fold_lines(*[message(T, "assistant", usage=most)] * 3)
    assert (entry.input_tokens, entry.total_tokens, entry.estimated_cost_usd) == (2**53, 2**53, 2.0**53)
    assert msgspec.json.decode(msgspec.json.encode(entry), type=Entry) == entry


def test_a_system_prompt_is_not_counted_as_a_message():
    assert fold_lines(message(T, "system")) == EMPTY


def test_a_message_cut_within_an_emoji_is_counted():
    body = {"type": "message", "timestamp": iso_time(T), "message": {"role": "user", "content": "cut \ud83d"}}
    line = json.dumps(body).encode()
    record = records.parse(line)
    assert (record.raw, record.is_message) == (line, True)
    assert json.loads(record.message or b"")["content"] == "cut \ufffd"
    entry = fold(EMPTY, record, 0, MTIME)
    assert replace(entry, title=None) == replace(EMPTY, updated_at=T, message_count=1)


def test_the_row_of_a_child_shows_its_task_and_not_its_announce_step():
    task = (run("t", "accepted", T), run("t", "running", T + 1), run("t", "error", T + 9))
    child = fold_lines(patch(spawn={"mode": "run"}), *task)
    steps = [run("s", "accepted", T + 10, step="announce"), run("s", "running", T + 11), run("s", "ok", T + 20)]
    steps[2]["data"] |= {"usage": {"input": 5, "output": 2}, "estimatedCostUsd": 0.5}
    entry = child
    for number, step in enumerate(steps):
        entry = fold_lines(step, entry=entry)
        assert (entry.status, entry.started_at, entry.ended_at, entry.runtime_ms) == ("error", T + 1, T + 9, 8)
        assert len(entry.runs) == (number < 2)
    assert (entry.input_tokens, entry.output_tokens, entry.estimated_cost_usd) == (5, 2, 0.5)
    # In a session that was not spawned, an announce step sets the status like any run.
    assert fold_lines(*task, *steps[:2]).status == "running"


def test_an_entry_keeps_open_runs_up_to_the_limit_and_ignores_more():
    full = fold_lines(*(run(f"r{number}", "accepted", T) for number in range(MAX_OPEN_RUNS)))
    assert [one.run_id for one in full.runs] == [f"r{number}" for number in range(MAX_OPEN_RUNS)]
    beyond = run("beyond", "accepted", T, idempotencyKey="beyond", payload="p")
    for status in ("accepted", "running", "ok"):
        assert fold_lines(beyond, run("beyond", status, T), entry=full) is full
    record = records.parse(json.dumps(beyond).encode())
    assert (
        ineffective_reason(full, record) == "a run accepted while 2000 were open already, as many as a session may have"
    )
    # When any run has ended, there is room for one more.
    less = fold_lines(run("r7", "ok", T), entry=full)
    assert ineffective_reason(less, record) is None
    again = fold_lines(beyond, entry=less)
    assert [one.run_id for one in again.runs] == [*(one.run_id for one in full.runs if one.run_id != "r7"), "beyond"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["accepted", "running", "ok", "aborted"]))))
def test_the_open_runs_are_those_accepted_and_not_ended_in_order_of_acceptance(steps):
    wanted: dict[str, int | None] = {}
    for run_id, status in steps:
        if status == "accepted":
            wanted.setdefault(run_id, None)
        elif status == "running" and run_id in wanted:
            wanted[run_id] = T
        elif status != "running":
            wanted.pop(run_id, None)
    entry = fold_lines(*(run(run_id, status, T) for run_id, status in steps))
    assert {one.run_id: one.started_at for one in entry.runs} == wanted
    assert [one.run_id for one in entry.runs] == list(wanted)


def test_an_index_entry_with_more_open_runs_than_the_limit_is_rejected():
    runs = tuple(LiveRun(run_id=f"r{number}", offset=0) for number in range(MAX_OPEN_RUNS + 1))
    facts = FileFacts(bytes=9, folded_to=9)
    assert replace(EMPTY, runs=runs[1:], file=facts).is_plausible
    assert not replace(EMPTY, runs=runs, file=facts).is_plausible


def test_the_index_holds_a_spawn_exactly_as_its_records_gave_it():
    first = {"mode": "run", "cleanup": "keep", "requesterKey": "agent:main:main", "attachments": {"relDir": "a"}}
    later = [{"mountPath": "in"}, {"ended": "s.0123"}, {"announced": "posted"}, {"attachmentsRemoved": True}]
    entry = fold_lines(*(patch(spawn=one) for one in [first, *later]))
    text = json.dumps({name: value for one in [first, *later] for name, value in one.items()}, separators=(",", ":"))
    assert f'"spawn":{text}'.encode() in msgspec.json.encode(entry)
    assert msgspec.json.decode(msgspec.json.encode(entry), type=type(entry)) == entry


@check_each(
    ("message", "title"),
    [
        ({"role": "user", "content": "\n  Mend \t the roof \nand more"}, "Mend the roof"),
        ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see"}]}, "see"),
        ({"role": "user", "content": "x" * 300}, "x" * 80),
        (
            {
                "role": "user",
                "content": 'Sender (untrusted metadata):\n```json\n{"id": 1}\n```\n\n[Sat 2026-11-21] What is it?',
            },
            "What is it?",
        ),
        ({"role": "user", "content": "Sender (untrusted metadata):\n```json\n{"}, None),
        ({"role": "user", "content": "[draft] of 2026-01-01"}, "[draft] of 2026-01-01"),
        ({"role": "user", "content": "a\x1b[31mb\u202ec"}, "a[31mbc"),
        ({"role": "user", "content": "\x1b \u202e"}, None),
        ({"role": "user", "content": "task", "provenance": {"kind": "inter_session"}}, None),
        ({"role": "assistant", "content": "answer"}, None),
        ({"role": "user", "content": 7}, None),
    ],
)
def test_the_first_words_that_a_person_typed_are_the_title(message: dict[str, Any], title: str | None) -> None:
    line = msgspec.json.encode({"type": "message", "id": "a", "message": message})
    entry = fold(EMPTY, records.parse(line), 0, MTIME)
    assert entry.title == title
    child = fold(replace(EMPTY, spawned_by="agent:main:main"), records.parse(line), 0, MTIME)
    is_task = "provenance" in message
    # What another session began it for is no title.
    assert (child.title, child.task, entry.task) == (None, "task" if is_task else title, "task" if is_task else None)
    later = msgspec.json.encode({"type": "message", "id": "b", "message": {"role": "user", "content": "later"}})
    assert fold(entry, records.parse(later), 9, MTIME).title == title or title is None
    assert fold(child, records.parse(later), 9, MTIME).task == child.task or child.task is None
    announced = {"role": "user", "content": "of the daemon", "provenance": {"kind": "internal_system"}}
    line = msgspec.json.encode({"type": "message", "id": "c", "message": announced})
    assert fold(EMPTY, records.parse(line), 0, MTIME).task is None


def test_a_title_cannot_be_patched() -> None:
    assert patch_entry(EMPTY, {"title": "forged", "task": "forged"}) == EMPTY
