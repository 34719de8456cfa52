"""How long tests wait for what has to come."""

from __future__ import annotations

# Long enough for any slow machine, so that a test that runs out of it has found a defect.
PATIENCE_S = 180.0
