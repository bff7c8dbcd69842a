"""The life of a notification in Redis: the calls that move it."""
