"""Checks Redis for inconsistent or orphaned entries."""
