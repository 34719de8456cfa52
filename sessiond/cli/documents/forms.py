"""What the forms of a document are, so that whoever writes one need not know which it is. A module is a form."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal, Protocol

    from sessiond.cli.documents.contents import ShownMessage
    from sessiond.cli.terminal.page_order import PageEntry

    class ForReading(Protocol):
        """For people: one title and one end, and between them messages as they are shown."""

        @property
        def is_data(self) -> Literal[False]: ...
        def head(self, title: str, facts: Sequence[tuple[str, str]]) -> str: ...
        def session_head(self, title: str) -> str: ...
        def message(self, one: ShownMessage, when: str) -> str: ...
        def foot(self, notes: Sequence[str]) -> str: ...

    class ForPrograms(Protocol):
        """For programs: the rows and what was said as the daemon has them."""

        @property
        def is_data(self) -> Literal[True]: ...
        def head(self, row: dict[str, Any]) -> str: ...
        def line_of(self, entry: PageEntry, shown: Any, files: list[dict[str, Any]]) -> str: ...

    Form = ForReading | ForPrograms
