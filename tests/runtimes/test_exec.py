"""The exec runtime with real programs as agents."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.errors import LimitExceeded
from sessiond.runtimes import process
from sessiond.runtimes.exec import ExecRuntime, _apply_all
from sessiond.runtimes.launcher import ProgramCommand
from sessiond.runtimes.output import ENVELOPE_BYTES, Delta, Event
from sessiond.runtimes.runtime import RunOutcome
from sessiond.runtimes.sandbox import Bubblewrap
from sessiond.runtimes.turn_summary import TurnSummary
from sessiond.store.dirfd import closing
from sessiond.tasks import LONG_BYTES

# Only folders that we may search: otherwise, a missing program is reported as one that may not be executed.
PATH = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if os.access(folder, os.X_OK))
ENVIRON = {"PATH": PATH, "HOME": "/nowhere", "LANG": "C.UTF-8", "ANTHROPIC_API_KEY": "secret"}


def exec_runtime(*command: str, kill_grace_s: float = 5.0, limit: int = 8 << 20, **fields: Any) -> ExecRuntime:
    return ExecRuntime(
        RuntimeConfig(type="exec", command=command, **fields),
        environ=ENVIRON,
        max_record_bytes=limit,
        bubblewrap=Bubblewrap(private=()),
        sandbox_config=SandboxConfig(),
        kill_grace_s=kill_grace_s,
    )


def python(code: str, **fields: Any) -> ExecRuntime:
    return exec_runtime(sys.executable, "-c", code, **fields)


def shell(code: str, **fields: Any) -> ExecRuntime:
    return exec_runtime("/bin/sh", "-c", code, **fields)


async def wait_until_gone(pid: int) -> None:
    """Return when the process has ended; it may still be a zombie."""
    with trio.fail_after(PATIENCE_S):
        while is_alive(pid):  # noqa: ASYNC110
            await trio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # ProcessLookupError: it ended between opening and reading
        return False


async def test_stdout_is_the_reply(make_spec, recorder) -> None:
    outcome = await exec_runtime("cat").run(make_spec("hello\nworld"), recorder)
    assert outcome == RunOutcome(reply="hello\nworld")
    assert "".join(recorder.deltas) == "hello\nworld"
    assert recorder.messages == []


async def test_a_program_reads_the_message_on_stdin(make_spec, recorder) -> None:
    assert await exec_runtime("bc").run(make_spec("6 * 7"), recorder) == RunOutcome(reply="42")


async def test_the_context_comes_before_the_message(make_spec, recorder) -> None:
    outcome = await exec_runtime("cat").run(make_spec("the message", context="the preamble"), recorder)
    assert outcome == RunOutcome(reply="the preamble\n\nthe message")


async def test_only_trailing_newlines_are_removed_from_the_reply(make_spec, recorder) -> None:
    outcome = await shell(r"printf '\n one \n\ntwo  \n\n\r\n'").run(make_spec(), recorder)
    assert outcome == RunOutcome(reply="\n one \n\ntwo  ")
    assert "".join(recorder.deltas) == outcome.reply


async def test_no_output_is_an_empty_reply(make_spec, recorder) -> None:
    assert await exec_runtime("true").run(make_spec(), recorder) == RunOutcome(reply="")
    assert recorder.deltas == []


async def test_deltas_come_while_the_program_runs(make_spec, recorder, workspace) -> None:
    os.mkfifo(workspace / "go")
    async with trio.open_nursery() as nursery, _fail_after(PATIENCE_S):

        async def release() -> None:
            await recorder.arrived.wait()
            (workspace / "seen").write_text("".join(recorder.deltas))
            await trio.to_thread.run_sync((workspace / "go").write_text, "go")

        nursery.start_soon(release)
        outcome = await shell("printf first; cat go >/dev/null; printf second").run(make_spec(), recorder)
    assert (workspace / "seen").read_text() == "first"
    assert outcome == RunOutcome(reply="firstsecond")


async def test_a_character_split_between_two_writes_is_one_delta(make_spec, recorder, workspace) -> None:
    os.mkfifo(workspace / "go")
    async with trio.open_nursery() as nursery, _fail_after(PATIENCE_S):

        async def release() -> None:
            await recorder.arrived.wait()
            await trio.to_thread.run_sync((workspace / "go").write_text, "go")

        nursery.start_soon(release)
        outcome = await shell(r"printf 'a\342\202'; cat go >/dev/null; printf '\254'").run(make_spec(), recorder)
    assert outcome == RunOutcome(reply="a€")
    assert recorder.deltas == ["a", "€"]


async def test_bytes_that_are_not_utf8_are_replaced(make_spec, recorder) -> None:
    assert await shell(r"printf 'a\377b\303'").run(make_spec(), recorder) == RunOutcome(reply="a\ufffdb\ufffd")


async def test_json_input_contains_the_whole_request_and_the_history(make_spec, recorder) -> None:
    async def history() -> list[msgspec.Raw]:
        await trio.lowlevel.checkpoint()
        return [msgspec.Raw(b'{"role":"user","content":"before"}')]

    spec = make_spec(
        "hi",
        context="note",
        model="m1",
        thinking="low",
        step="reply",
        turn=1,
        max_turns=5,
        provenance={"kind": "inter_session"},
        history=history,
    )
    outcome = await exec_runtime("cat", input="json").run(spec, recorder)
    assert outcome.reply is not None
    assert msgspec.json.decode(outcome.reply) == {
        "runId": spec.run_id,
        "sessionKey": "agent:main:main",
        "sessionId": spec.session_id,
        "agentId": "main",
        "step": "reply",
        "message": "hi",
        "thinking": "low",
        "model": "m1",
        "history": [{"role": "user", "content": "before"}],
        "context": "note",
        "provenance": {"kind": "inter_session"},
        "turn": 1,
        "maxTurns": 5,
    }


async def test_placeholders_are_filled_once_and_other_braces_stay(make_spec, recorder, workspace) -> None:
    runtime = exec_runtime(
        "printf",
        "%s|",
        "{sessionId}",
        "--key={sessionKey}",
        "{model}",
        "{workspace}/x",
        "{runId}",
        "{other} {} {{model}}",
    )
    spec = make_spec(model="{runId}")
    outcome = await runtime.run(spec, recorder)
    assert outcome.reply == "|".join(
        (
            spec.session_id,
            "--key=agent:main:main",
            "{runId}",
            f"{workspace}/x",
            spec.run_id,
            "{other} {} {{runId}}",
            "",
        )
    )


async def test_the_model_placeholder_is_empty_if_no_model_is_set(make_spec, recorder) -> None:
    assert await exec_runtime("printf", "[%s]", "{model}").run(make_spec(), recorder) == RunOutcome(reply="[]")


async def test_the_program_gets_only_the_allowed_environment_variables(make_spec, recorder, tmp_path) -> None:
    spec = make_spec(token_file=tmp_path / "token")
    runtime = exec_runtime("env", "-0", env={"KEY": "{sessionId}", "SESSIOND_RUN_ID": "forged"})
    outcome = await runtime.run(spec, recorder)
    assert outcome.reply is not None
    assert dict(pair.split("=", 1) for pair in outcome.reply.split("\0") if pair) == {
        "PATH": ENVIRON["PATH"],
        "HOME": "/nowhere",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "KEY": spec.session_id,
        "SESSIOND_SOCKET": str(tmp_path / "run" / "agent.sock"),
        "SESSIOND_TOKEN_FILE": str(tmp_path / "token"),
        "SESSIOND_SESSION_KEY": "agent:main:main",
        "SESSIOND_RUN_ID": spec.run_id,
    }


async def test_the_program_has_three_file_descriptors_its_own_process_session_and_no_terminal(
    make_spec, recorder, workspace
) -> None:
    with closing(os.open(workspace, os.O_RDONLY)) as inherited:
        os.set_inheritable(inherited, True)
        outcome = await python(
            "import os\n"
            "try: os.open('/dev/tty', os.O_RDWR); tty = True\n"
            "except OSError: tty = False\n"
            "fds = sorted(int(n) for n in os.listdir('/proc/self/fd'))\n"
            "print(fds[:3], len(fds), os.getsid(0) == os.getpid() == os.getpgid(0), tty, os.getcwd())"
        ).run(make_spec(), recorder)
    # The fourth descriptor is that of listdir itself.
    assert outcome == RunOutcome(reply=f"[0, 1, 2] 4 True False {workspace}")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("exit 3", "command exited with status 3"),
        ("echo why >&2; exit 3", "command exited with status 3: why"),
        ("echo said only here; exit 1", "command exited with status 1: said only here"),
        ("kill -KILL $$", "command was killed by SIGKILL"),
        ("echo oops >&2; kill -SEGV $$", "command was killed by SIGSEGV: oops"),
        (r"printf '\033[31mred\033[0m\007 text\n' >&2; exit 1", "command exited with status 1: red text"),
    ],
)
async def test_the_error_of_a_failed_program_has_its_status_or_signal_and_the_end_of_stderr(
    make_spec, recorder, code, error
) -> None:
    assert await shell(code).run(make_spec(), recorder) == RunOutcome(error=error)


async def test_the_error_shows_the_last_whole_lines_of_a_long_stderr(make_spec, recorder) -> None:
    outcome = await python("import sys\nfor n in range(5000): print(f'line {n:05}', file=sys.stderr)\nsys.exit(9)").run(
        make_spec(), recorder
    )
    assert outcome.error is not None
    head, _, tail = outcome.error.partition(": ")
    assert head == "command exited with status 9"
    lines = tail.splitlines()
    assert lines[-1] == "line 04999"
    assert 1900 < len(tail) <= 2048
    assert all(len(line) == len("line 00000") for line in lines)


async def test_much_output_on_stderr_does_not_fail_the_run(make_spec, recorder) -> None:
    code = "import os\nfor _ in range(500): os.write(2, b'x' * 65536)\nprint('done')"
    assert await python(code).run(make_spec(), recorder) == RunOutcome(reply="done")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (
            ("no-such-program",),
            "command not found: no-such-program (give its full path, or set PATH in the runtime's env)",
        ),
        (("./plain",), "command cannot be executed: ./plain (permission denied)"),
        (("./empty",), "command cannot be started: ./empty (Exec format error)"),
        (("printf", "a\0b"), "command cannot be started: printf (embedded null byte)"),
    ],
)
async def test_the_error_says_why_a_command_cannot_be_started(make_spec, recorder, workspace, command, error) -> None:
    (workspace / "plain").write_text("text")
    (workspace / "empty").write_text("")
    (workspace / "empty").chmod(0o755)
    assert await exec_runtime(*command).run(make_spec(), recorder) == RunOutcome(error=error)


async def test_the_error_says_that_the_workspace_is_missing(make_spec, recorder, tmp_path) -> None:
    outcome = await exec_runtime("true").run(make_spec(workspace=tmp_path / "none"), recorder)
    assert outcome == RunOutcome(error="the folder in which the agent works is not there, or no folder")


async def test_a_program_may_start_elsewhere_than_in_the_workspace(make_spec, recorder, workspace, tmp_path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (workspace / "program").write_text("#!/bin/sh\npwd\n")
    (workspace / "program").chmod(0o755)
    spec = make_spec(cwd=project)
    assert await exec_runtime("./program").run(spec, recorder) == RunOutcome(reply=str(project))
    missing = await exec_runtime("true").run(make_spec(cwd=tmp_path / "none"), recorder)
    assert missing == RunOutcome(error="the folder in which the agent works is not there, or no folder")


async def test_a_program_may_leave_its_input_unread(make_spec, recorder) -> None:
    outcome = await shell("exec <&-; echo fine").run(make_spec("x" * 1_000_000), recorder)
    assert outcome == RunOutcome(reply="fine")


LIMIT = 10_000
FITS = LIMIT - ENVELOPE_BYTES - 2


@pytest.mark.parametrize(("size", "fits"), [(FITS, True), (FITS + 1, False), (LIMIT + 1, False), (1 << 22, False)])
async def test_a_reply_must_fit_into_a_record(make_spec, recorder, size, fits) -> None:
    with trio.fail_after(PATIENCE_S):
        outcome = await python(f"print('x' * {size}, flush=True)", limit=LIMIT).run(make_spec(), recorder)
    if fits:
        assert outcome == RunOutcome(reply="x" * size)
    else:
        assert outcome == RunOutcome(error="the reply is over limits.maxRecordBytes (10000 bytes)")


async def test_a_program_with_endless_output_is_ended(make_spec, recorder) -> None:
    with trio.fail_after(PATIENCE_S):
        outcome = await shell("echo $$ >pid; exec yes", limit=1 << 20).run(make_spec(), recorder)
    assert outcome == RunOutcome(error="the reply is over limits.maxRecordBytes (1048576 bytes)")


async def test_the_encoded_length_of_a_reply_counts_for_the_limit(make_spec, recorder) -> None:
    outcome = await python("print('\\x01' * 2000)", limit=LIMIT).run(make_spec(), recorder)
    assert outcome == RunOutcome(error="the reply is over limits.maxRecordBytes (10000 bytes)")


def _fail_after(seconds: float) -> Any:
    """`trio.fail_after` as an async context manager, so that it can share an `async with` with a nursery."""

    class Deadline:
        async def __aenter__(self) -> None:
            self.scope = trio.fail_after(seconds)
            self.scope.__enter__()

        async def __aexit__(self, *error: object) -> None:
            self.scope.__exit__(*error)

    return Deadline()


async def test_jsonl_lines_become_messages_byte_for_byte(make_spec, recorder) -> None:
    lines = [
        '{"role": "assistant", "content": [{"type":"text","text":"let me see"},'
        '{"type":"toolCall","id":"c1","name":"ls","arguments":{}}],"model":"m","usage":{"input":1,"output":2,'
        '"totalTokens":3,"cost":{"total":0.5}}}',
        '{"role":"toolResult","toolCallId":"c1","toolName":"ls","content":"a b","isError":false}',
        '{"type":"message","message":{"role":"assistant","content":"two files","model":"m2",'
        '"usage":{"input":10,"output":20,"totalTokens":30,"cost":{"total":0.25}}}}',
    ]
    outcome = await exec_runtime("printf", "%s\n", *lines, output="jsonl").run(make_spec(), recorder)
    assert outcome == RunOutcome(
        reply="two files",
        usage={"input": 11, "output": 22, "totalTokens": 33, "cost": {"total": 0.75}},
        model="m2",
    )
    assert recorder.raw == [lines[0].encode(), lines[1].encode(), None]
    assert recorder.messages[2]["content"] == "two files"


async def test_delta_and_tool_lines_become_events_and_unknown_lines_custom_records(make_spec, recorder) -> None:
    lines = [
        '{"type":"delta","text":"tw"}',
        '{"type":"tool","phase":"start","toolCallId":"c1","name":"ls","arguments":{"a":1},"self":1,"tool_call_id":"x"}',
        '{"type":"tool","phase":"sideways","toolCallId":"c1","name":"ls"}',
        '{"type":"progress","percent":5}',
        '{"percent":6}',
        '{"role":"assistant","content":{"text":"no"}}',
        '{"role":"toolResult","content":"no call"}',
        "",
    ]
    outcome = await exec_runtime("printf", "%s\n", *lines, output="jsonl").run(make_spec(), recorder)
    assert outcome == RunOutcome(reply="")
    assert recorder.deltas == ["tw"]
    assert recorder.tools == [("start", "c1", "ls", {"arguments": {"a": 1}})]
    assert [kind for kind, _ in recorder.customs] == [
        "exec/tool",
        "exec/progress",
        "exec/line",
        "exec/message",
        "exec/message",
    ]
    assert recorder.customs[1] == ("exec/progress", {"type": "progress", "percent": 5})


async def test_provenance_set_by_the_agent_is_removed(make_spec, recorder) -> None:
    line = '{"role":"user","content":"hi","provenance":{"kind":"inter_session"}}'
    await exec_runtime("printf", "%s", line, output="jsonl").run(make_spec(), recorder)
    assert recorder.messages == [{"role": "user", "content": "hi"}]


async def test_lines_that_are_not_json_are_left_out_and_noted(make_spec, recorder) -> None:
    lines = ["Warning: old version", '{"role":"assistant","content":"hi"}', "[1]"]
    outcome = await exec_runtime("printf", "%s\n", *lines, output="jsonl").run(make_spec(), recorder)
    assert outcome == RunOutcome(
        reply="hi", notes=("2 lines of output could not be read and were left out, the last: [1]",)
    )


async def test_output_without_any_json_line_is_an_error(make_spec, recorder) -> None:
    outcome = await exec_runtime("echo", "Please log in first", output="jsonl").run(make_spec(), recorder)
    assert outcome == RunOutcome(
        error="the agent said nothing that can be read: 1 lines of output could not be read and were left out, "
        "the last: Please log in first"
    )


@pytest.mark.parametrize(("size", "fits"), [(LIMIT, True), (LIMIT + 1, False)])
async def test_a_line_must_fit_into_a_record(make_spec, recorder, size, fits) -> None:
    empty = len('{"role":"assistant","content":""}')
    line = '{"role":"assistant","content":"' + "x" * (size - empty) + '"}'
    (make_spec().workspace / "line").write_text(line + "\n")
    outcome = await exec_runtime("cat", "line", output="jsonl", limit=LIMIT).run(make_spec(), recorder)
    if fits:
        assert outcome.reply == "x" * (size - empty)
    else:
        assert outcome == RunOutcome(error="a line of output is over limits.maxRecordBytes (10000 bytes)")


async def test_a_long_line_is_taken_in_its_order_and_what_follows_it_too(make_spec, recorder) -> None:
    long = '{"role":"assistant","content":"' + "x" * (LONG_BYTES + 1) + '"}'
    lines = ['{"type":"delta","text":"a"}', long, '{"type":"delta","text":"b"}', long.replace("x", "y")]
    (make_spec().workspace / "lines").write_text("\n".join(lines))
    outcome = await exec_runtime("cat", "lines", output="jsonl").run(make_spec(), recorder)
    assert outcome.reply == "y" * (LONG_BYTES + 1)
    assert recorder.raw == [long.encode(), lines[3].encode()] and recorder.deltas == ["a", "b"]


async def test_what_a_program_printed_before_a_line_over_the_limit_is_kept(make_spec, recorder) -> None:
    limit = LONG_BYTES + 1000
    before = '{"role":"assistant","content":"' + "x" * LONG_BYTES + '"}'
    (make_spec().workspace / "lines").write_text(before + "\n" + "y" * (limit + 1))
    outcome = await exec_runtime("cat", "lines", output="jsonl", limit=limit).run(make_spec(), recorder)
    assert outcome.error == f"a line of output is over limits.maxRecordBytes ({limit} bytes)"
    assert recorder.raw == [before.encode()]


async def test_a_thread_without_memory_ends_the_run_after_what_came_before(recorder) -> None:
    def events() -> Iterator[Event]:
        yield Delta("before")
        raise MemoryError

    with pytest.raises(MemoryError):
        await _apply_all(LONG_BYTES + 1, events(), recorder, TurnSummary())
    assert recorder.deltas == ["before"]


async def test_an_endless_line_ends_the_run_at_the_limit(make_spec, recorder) -> None:
    with trio.fail_after(PATIENCE_S):
        outcome = await shell("tr '\\0' x </dev/zero", output="jsonl", limit=1 << 20).run(make_spec(), recorder)
    assert outcome == RunOutcome(error="a line of output is over limits.maxRecordBytes (1048576 bytes)")


async def test_an_error_of_the_sink_ends_the_program_and_the_run(make_spec, workspace) -> None:
    class FullSink:
        async def message(self, message: Any) -> None:
            raise LimitExceeded("the record is too large")

    runtime = shell("""echo $$ >pid; echo '{"role":"assistant","content":"x"}'; exec sleep 1000""", output="jsonl")
    with trio.fail_after(PATIENCE_S):
        assert await runtime.run(make_spec(), FullSink()) == RunOutcome(error="the record is too large")
    await wait_until_gone(int((workspace / "pid").read_text()))


async def test_slow_appends_lose_no_output_after_the_program_has_ended(make_spec, recorder, workspace) -> None:
    arrived, release = trio.Event(), trio.Event()

    class SlowSink:
        async def message(self, message: Any) -> None:
            arrived.set()
            await release.wait()
            await recorder.message(message)

    (workspace / "lines").write_text('{"role":"assistant","content":"x"}\n' * 1000)
    runtime = ExecRuntime(
        RuntimeConfig(type="exec", command=("/bin/sh", "-c", "echo $$ >pid; exec cat lines"), output="jsonl"),
        environ=ENVIRON,
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=()),
        sandbox_config=SandboxConfig(),
        pipe_grace_s=0.001,
    )
    async with trio.open_nursery() as nursery, _fail_after(PATIENCE_S):

        async def release_when_gone() -> None:
            try:
                await arrived.wait()
                await wait_until_gone(int((workspace / "pid").read_text()))
                # Longer than the grace period, which begins when the daemon has noticed the end.
                await trio.sleep(0.02)
            finally:
                release.set()  # a run waits for its current write even if it is cancelled

        nursery.start_soon(release_when_gone)
        outcome = await runtime.run(make_spec(), SlowSink())
    assert outcome.reply == "x"
    assert len(recorder.messages) == 1000


async def test_a_child_that_keeps_the_pipes_open_does_not_prolong_the_run(make_spec, recorder, workspace) -> None:
    with trio.fail_after(PATIENCE_S):
        outcome = await shell("sleep 1000 & echo $! >pid; echo started").run(make_spec(), recorder)
    assert outcome == RunOutcome(reply="started")
    await wait_until_gone(int((workspace / "pid").read_text()))


async def test_a_child_that_keeps_writing_does_not_prolong_the_run(make_spec, recorder, workspace) -> None:
    with trio.fail_after(PATIENCE_S):
        outcome = await shell("yes >&2 & echo $! >pid; echo started").run(make_spec(), recorder)
    assert outcome == RunOutcome(reply="started")
    await wait_until_gone(int((workspace / "pid").read_text()))


async def test_an_abort_sends_sigterm_to_the_whole_process_group(make_spec, recorder, workspace) -> None:
    code = "trap 'echo $? >trapped; exit 0' TERM; sleep 1000 & echo $! >child; echo $$ >leader; echo up; wait"
    await _run_and_abort(shell(code), make_spec(), recorder)
    assert (workspace / "trapped").exists()
    await wait_until_gone(int((workspace / "leader").read_text()))
    await wait_until_gone(int((workspace / "child").read_text()))


async def test_an_abort_kills_processes_that_ignore_sigterm(make_spec, recorder, workspace) -> None:
    code = "trap '' TERM; sleep 1000 & echo $! >child; echo $$ >leader; echo up; wait; sleep 1000"
    await _run_and_abort(shell(code, kill_grace_s=0.1), make_spec(), recorder)
    await wait_until_gone(int((workspace / "leader").read_text()))
    await wait_until_gone(int((workspace / "child").read_text()))


async def test_an_abort_kills_a_child_that_ignores_sigterm_after_its_leader_has_ended(
    make_spec, recorder, workspace
) -> None:
    code = "(trap '' TERM; echo $$ >leader; exec sleep 1000) & echo $! >child; echo up; wait"
    await _run_and_abort(shell(code, kill_grace_s=0.1), make_spec(), recorder)
    await wait_until_gone(int((workspace / "child").read_text()))


async def _run_and_abort(runtime: ExecRuntime, spec: Any, recorder: Any) -> None:
    """Run the program until its first output, then cancel the run."""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, spec, recorder)
            await recorder.arrived.wait()
            nursery.cancel_scope.cancel()


async def test_no_descriptor_is_left_open(make_spec, recorder) -> None:
    await exec_runtime("cat").run(make_spec(), recorder)  # this starts the fork server, which keeps its descriptors
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        await exec_runtime("cat").run(make_spec(), recorder)
        await exec_runtime("no-such-program").run(make_spec(), recorder)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


async def test_a_run_of_a_stopped_program_can_be_aborted(make_spec, recorder, workspace) -> None:
    await _run_and_abort(shell("echo $$ >leader; echo up; kill -STOP $$", kill_grace_s=0.1), make_spec(), recorder)
    pid = int((workspace / "leader").read_text())
    await wait_until_gone(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_a_program_that_is_nowhere_is_not_found_where_a_folder_of_path_is_closed(tmp_path: Path) -> None:
    """The system says `permission denied` of it then, and so do the paths of another user's tools."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = ProgramCommand(argv=("no-such-program",), env={"PATH": str(closed)}, cwd=tmp_path)
    assert process._explain(command, PermissionError(13, "x")).startswith("command not found: no-such-program ")
    (tmp_path / "data").write_text("no program")
    command = ProgramCommand(argv=(str(tmp_path / "data"),), env={"PATH": str(closed)}, cwd=tmp_path)
    assert "permission denied" in process._explain(command, PermissionError(13, "x"))
