"""Web Push: the provider, and everything that is Web Push's alone."""
