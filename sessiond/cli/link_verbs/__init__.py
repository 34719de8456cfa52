"""The verbs of `sessiond link`, a few in each module."""
