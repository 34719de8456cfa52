"""Opening a store of 10,000 sessions in a new process, against importing the same packages; and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from store_data import finish, make_sessions, median, scratch, verdict

COUNT = 10_000
ROUNDS = 5

IMPORTS = "import trio, msgspec, sortedcontainers, sessiond.store.store, sessiond.model.row\n"
OPEN = """
import sys
from pathlib import Path
from time import perf_counter
begin = perf_counter()
async def main():
    said = []
    settings = dict(durable=True, record_limit=8 << 20, rules=sessiond.model.row.KeyRules())
    tell = lambda done, total, agent: said.append((done, total, agent))
    async with sessiond.store.store.open_store(Path(sys.argv[1]), listener=None, progress=tell, **settings) as store:
        seconds = perf_counter() - begin
        with open("/proc/self/statm") as statm:
            rss = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for folder in store.dirty_folders():
            await store.save(folder)
        rows = sorted((key, session.entry.updated_at) for key, session in store.catalog.by_key.items())
        facts = {"seconds": seconds, "rss": rss, "rows": hash(str(rows)), "count": len(rows), "said": said[-1:]}
        print(json.dumps(facts))
import json, os
trio.run(main)
"""


def open_in_process(store: Path) -> dict[str, object]:
    """The figures of a new process that imports and opens the store."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + OPEN, str(store)],
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parent.parent.parent,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> None:
    with scratch() as path:
        make_sessions(path / "store", COUNT)
        index = path / "store" / "agents" / "main" / "sessions" / "sessions.json"
        first = open_in_process(path / "store")
        runs = [open_in_process(path / "store") for _ in range(ROUNDS)]
        assert index.exists()
        index.unlink()
        again = open_in_process(path / "store")
    assert all(run["rows"] == first["rows"] == again["rows"] and run["count"] == COUNT for run in runs)
    assert all(run["said"] == [] for run in runs)
    assert again["said"] == [[COUNT - 1, COUNT, "main"]]
    current = median([float(str(run["seconds"])) for run in runs])
    memory = max(float(str(run["rss"])) for run in runs)
    print(f"     10,000 sessions: index current {current:.2f} s, index deleted {float(str(again['seconds'])):.2f} s")
    finish(
        [
            verdict("start with a current index, seconds over the imports", current, at_most=0.3),
            verdict("start without an index, times one with it", float(str(again["seconds"])) / current, at_most=20),
            verdict("memory with 10,000 sessions, MB resident", memory / 1e6, at_most=80),
        ]
    )


if __name__ == "__main__":
    main()
