"""What rules would have done to recorded traffic: reads traces, replays them in simulated time, compares."""
