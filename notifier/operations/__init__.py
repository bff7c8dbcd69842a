"""What operators ask: explain, audit, preview."""
