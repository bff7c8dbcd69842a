"""Answer operators: explain, audit, preview."""
