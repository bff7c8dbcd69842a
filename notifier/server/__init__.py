"""`notifier serve`: metrics, health, an API to read, and a page of what happens now. Needs the extra `server`."""
