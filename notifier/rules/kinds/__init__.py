"""The kinds of rules of sends: one file has all that Python knows of a kind."""
