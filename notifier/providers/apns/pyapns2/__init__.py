"""Apple's push service through the `apns2` package, for users who depend on it."""
