"""The providers' clients, each beside its ceiling and its peers, in one run: `python -m benchmarks.providers`."""
