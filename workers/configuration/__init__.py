"""From the configuration to objects, at the start and while the worker works."""
