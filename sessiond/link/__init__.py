"""`sessiond link`: joins daemons of several machines through a NATS server. A program of its own, under asyncio, and a
client of the daemon's socket; the daemon itself opens no network connection. Source: machines.md, "Parts".
"""
