"""The loop: what a worker does round after round, and what it has in flight."""
