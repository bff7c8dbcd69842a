"""Apple's push service through the `apns2` package, for who has code and habits on it."""
