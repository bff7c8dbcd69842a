"""The pages, made on the server of what the API tells: each value escaped, and each usable without a script."""
