"""HTTP/2 for many small requests at once, on h2."""
