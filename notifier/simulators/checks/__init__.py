"""The checks that the real services make on a request."""
