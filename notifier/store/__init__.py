"""The connection to Redis, and the rates published through it."""
