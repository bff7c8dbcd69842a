"""Commands about what stands before the first message: the configuration, the rules of Redis, partitions."""
