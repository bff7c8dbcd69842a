"""Expected times: reads a user's backlogs from Redis, and replays them in simulated time."""
