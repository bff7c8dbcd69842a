"""HTTP/1.1 and HTTP/2 as the providers use them."""
