"""The 200 newest sessions, with 200, 10,000 and 100,000 of them in memory."""

from __future__ import annotations

from itertools import islice

from store_data import T, best_of, finish, verdict

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store.catalog import Catalog, Folder, Session

COUNTS = (200, 10_000, 100_000)
ROUNDS = 300


def make_catalog(count: int) -> Catalog:
    """A catalog whose sessions were last used in random order."""
    folder, catalog, sessions = Folder("main", -1, dialect=V3), Catalog(), []
    for number in range(count):
        key = f"agent:main:whatsapp:direct:{number:012d}"
        entry = Entry(session_id=f"s{number}", session_key=key, updated_at=T + number * 7919 % count)
        sessions.append(Session(key=key, entry=entry, folder=folder))
    catalog.load(sessions)
    return catalog


def main() -> None:
    times = []
    for count in COUNTS:
        catalog = make_catalog(count)
        assert len(list(islice(catalog.newest(), 200))) == 200
        times.append(best_of(ROUNDS, lambda: list(islice(catalog.newest(), 200))))  # noqa: B023
        print(f"     {count:,} sessions: {times[-1] * 1e6:.0f} us")
    finish(
        [
            verdict(f"list of 200, {count:,} sessions against {COUNTS[0]}", time / times[0], at_most=1.5)
            for count, time in zip(COUNTS[1:], times[1:], strict=True)
        ]
    )


if __name__ == "__main__":
    main()
