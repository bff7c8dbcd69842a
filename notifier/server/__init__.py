"""`notifier serve`: pages, an API, metrics and health. Needs the extra `server`."""
