"""How many runs go on at once. The slot of a run that could not be created is free for the next one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.in_process import in_process_daemon
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.runs.queue import RunQueues
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.run_slots import MOST_AWAY, RunSlots, Slot

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["cat"] }
[agents.defaults]
maxConcurrent = 1
[agents.defaults.subagents]
maxConcurrent = 1
announce = "reply"
wakeRequester = false
"""


@contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_spawn_that_fails_on_a_full_disk_frees_its_run_slot(tmp_path: Path, failures: int) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say("main", "hello")
        for _ in range(failures):
            with full_disk():
                assert (await owner.failure("sessions_spawn", task="lost"))["code"] == -32009
        # There is one slot for sub-agents: if it stayed taken, the next one would wait for ever.
        assert parts.services.supervisor.queues._slots.taken["subagent"] == 0
        spawned = await owner.call("sessions_spawn", task="found")
        ended = await owner.call("agent.wait", runId=spawned["runId"], timeoutMs=PATIENCE_S * 1000)
        assert (ended["status"], ended["reply"].splitlines()[-1]) == ("ok", "found")
        assert parts.services.supervisor.live_runs() == 0


KINDS: dict[str, tuple[Slot, int]] = {
    "agent:main:main": ("other", 3),
    "agent:main:subagent:x": ("subagent", 2),
    "agent:quick:main": ("light", 64),
    "agent:quick:subagent:x": ("light", 64),
    "agent:mars:main": ("machine mars", MOST_AWAY),
    "agent:mars:subagent:x": ("machine mars", MOST_AWAY),
    "agent:venus:main": ("machine venus", MOST_AWAY),
}


@check_each("key", KINDS)
def test_runs_of_each_kind_have_a_limit_of_their_own(key: str) -> None:
    """The configured ones are not meant for agents whose runs start nothing."""
    slots = RunSlots(
        lambda: (3, 2), lambda agent_id: agent_id == "quick", lambda agent_id: agent_id in ("mars", "venus")
    )
    slot, most = KINDS[key]
    for _ in range(most):
        assert slots.has_free(key)
        assert slots.take(key) == slot
    assert {other for other in KINDS if slots.has_free(other)} == {other for other in KINDS if KINDS[other][0] != slot}
    slots.release(slot)
    assert slots.has_free(key)


def test_thousands_of_sessions_that_wait_for_one_machine_cost_the_others_nothing() -> None:
    """However many there are, each kind of session is looked at once."""
    looked_at: list[str] = []

    def is_machine(agent_id: str) -> bool:
        looked_at.append(agent_id)
        return agent_id == "mars"

    queues = RunQueues(RunSlots(lambda: (3, 2), lambda _: False, is_machine))
    for number in range(2000):
        session: Any = SimpleNamespace(key=f"agent:mars:mars/{number}")
        queues.push(Run(f"run-{number}", session, RunRequest(text="", message={}), 0))
    local: Any = SimpleNamespace(key="agent:main:main")
    queues.push(Run("local", local, RunRequest(text="", message={}), 0))
    looked_at.clear()
    started = queues.start_next(lambda agent_id: agent_id != "mars")
    assert started is not None
    assert (started.run_id, sorted(set(looked_at)), len(looked_at) < 5) == ("local", ["main", "mars"], True)
    assert queues.waiting_agents() == {"mars"}
    # The machine attaches: they start in the order in which they came, as many as it is asked for at once.
    begun = [run.run_id for run in iter(lambda: queues.start_next(lambda _: True), None)]
    assert begun == [f"run-{number}" for number in range(MOST_AWAY)]
