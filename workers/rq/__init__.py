"""RQ's own jobs: which may run here, and how they run."""
