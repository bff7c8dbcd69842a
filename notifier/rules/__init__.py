"""Which rules hold for whom, and what they mean. No I/O."""
