"""The rules that hold for a user and a category, and their meaning. No I/O."""
