"""What one line of another program's transcript says about its session, besides the message in it."""

from __future__ import annotations

import msgspec

from sessiond.model.usage import Usage

# The ranks of titles, each of which wins over those before it: the first words a person typed, a summary, a title that
# the program chose, and one that a person gave.
FIRST_WORDS, SUMMARY, CHOSEN, GIVEN = range(4)


class LineFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts of a session in one of its lines, as the program says them. None: the line does not say it.

    `native_id`, `forked_from` and `spawned_by` are the program's ids of the session, of the one it was copied from, and
    of the one whose sub-agent it is. `usage` counts once under `usage_id`, however many lines repeat it; without a
    `usage_id` it counts once under the line's message id. `usage_model`: an agent beside the conversation used it, with
    that model. `total_cost_usd` is what the session has cost so far, `model_costs` that by model.
    A title with `title_of` counts only where a line with that id is in the file. Newer versions of a program may write
    the usage of `usage_may_repeat` in a line of its own as well: it does not count behind usage without it.
    `unknown_type` is the type of a line that the dialect does not know.
    """

    native_id: str | None = None
    cwd: str | None = None
    created_ms: int | None = None
    title: str | None = None
    title_rank: int = FIRST_WORDS
    title_of: str | None = None
    model: str | None = None
    provider: str | None = None
    forked_from: str | None = None
    spawned_by: str | None = None
    usage: Usage | None = None
    usage_id: str | None = None
    usage_model: str | None = None
    usage_may_repeat: bool = False
    total_cost_usd: float | None = None
    model_costs: dict[str, float] = {}
    unknown_type: str | None = None
