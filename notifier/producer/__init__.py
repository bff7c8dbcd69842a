"""The producer's side: `Notifier`, the refusals, feedback."""
