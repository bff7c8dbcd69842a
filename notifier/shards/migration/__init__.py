"""Moves users from one shard to another while everybody works."""
