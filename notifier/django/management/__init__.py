"""What Django looks for by this name."""
