"""The command `notifier`: sending, looking, explaining and checking from a shell."""
