"""The limiter of users: what each may receive, in Redis and in memory."""
