"""Checks of what arrives, as the real services make them."""
