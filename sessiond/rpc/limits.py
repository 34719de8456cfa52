"""The bounds of one connection. Knows the numbers (protocol.md, "Limits"), not where the configuration keeps them."""

from __future__ import annotations

from dataclasses import dataclass

# What a message costs is not its bytes but how many values they are: 16 MiB hold eight million numbers, and decoding
# those would hold up everybody for seconds. A thousand messages have a tenth of it.
MAX_PARTS = 262_144
# Of CBOR, which is looked at item by item in Python.
MAX_CBOR_ITEMS = 65_536

# From so many bytes on a message is taken apart in a worker thread, and counts in the budget while it is there.
LONG_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection; sizes in bytes. Source: protocol.md, "Limits"."""

    max_frame_bytes: int = 16 * 1024 * 1024
    max_pre_auth_frame_bytes: int = 64 * 1024
    max_nesting: int = 64
    max_in_flight: int = 64
    # Not in the configuration: 16 MiB hold eight million items `1,`, and each would be answered with an error object.
    max_batch: int = 1024
    # The answers of a batch are one message, and there while the last of them is made.
    max_batch_answer_bytes: int = 16 * 1024 * 1024
