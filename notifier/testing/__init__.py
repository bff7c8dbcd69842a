"""A Redis of one's own, for tests, the demo and a first try."""
