"""The benchmarks: `python -m benchmarks` prints one table of what was measured beside what was asked for."""
