"""sessiond: a daemon that keeps the sessions of AI agents and lets them talk to each other."""

__version__ = "0.1.0"
