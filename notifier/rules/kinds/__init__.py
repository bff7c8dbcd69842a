"""The kinds of rules of sends, a file each: all that Python knows of one."""
