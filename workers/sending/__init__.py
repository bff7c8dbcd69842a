"""Sending: one leased job in, one settlement out; and what the routes are seen to do."""
