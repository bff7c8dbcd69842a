"""Commands that try something first: rates on recorded traffic, a limiter under many callers."""
