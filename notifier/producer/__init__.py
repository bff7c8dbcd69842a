"""What a producer calls: `Notifier`, what is refused, feedback."""
