"""When what waits goes: a user's backlogs read from Redis, and computed in simulated time."""
