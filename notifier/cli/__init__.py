"""The command `notifier`: send, inspect, explain and check from a shell."""
