"""Apple's push service: the provider over our own HTTP/2, and everything that is Apple's alone."""
