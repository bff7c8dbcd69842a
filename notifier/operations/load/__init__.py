"""Drive a limiter from many callers, and judge what it admitted."""
