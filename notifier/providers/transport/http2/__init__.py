"""HTTP/2 for many small requests at once, on h2; the one place that imports it."""
