"""One program a contestant: sends as fast as it can for a while, and prints what it managed as a line of JSON."""
