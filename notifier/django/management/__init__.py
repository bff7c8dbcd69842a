"""The package of commands that Django looks for by this name."""
