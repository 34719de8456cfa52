"""How long tests wait for what has to come."""

from __future__ import annotations

# Nothing waits so long when all is well, and no machine is so slow: whoever runs out of it waits for what never comes.
PATIENCE_S = 180.0
