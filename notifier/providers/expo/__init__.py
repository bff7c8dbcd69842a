"""Expo's push service: the provider, and everything that is Expo's alone."""
