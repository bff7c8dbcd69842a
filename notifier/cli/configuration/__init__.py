"""Commands for the setup: the configuration, Redis's ACL, partitions."""
