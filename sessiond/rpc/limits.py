"""The bounds of one connection. Knows the numbers (protocol.md, "Limits"), not the configuration."""

from __future__ import annotations

from dataclasses import dataclass

# Fewer than `decoding_cost.MAX_VALUES`, because they are scanned in Python.
MAX_CBOR_ITEMS = 65_536

# From this size on a message is parsed in a worker thread, and takes a share of the budget.
LONG_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection; sizes in bytes. Source: protocol.md, "Limits"."""

    max_frame_bytes: int = 16 * 1024 * 1024
    max_pre_auth_frame_bytes: int = 64 * 1024
    max_nesting: int = 64
    max_in_flight: int = 64
    # Not configurable: 16 MiB can hold eight million items `1,`, each of which would be answered with an error object.
    max_batch: int = 1024
    # The answers of a batch are one message, and all kept in memory until the last one is there.
    max_batch_answer_bytes: int = 16 * 1024 * 1024
