"""Preview what rules would have done to recorded traffic: read traces, replay them in simulated time, compare."""
