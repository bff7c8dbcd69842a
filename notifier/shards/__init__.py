"""Several Redis servers: which user lives where, and moving users."""
