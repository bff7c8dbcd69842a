"""Commands that try rates on recorded traffic."""
