"""All that runs inside Redis: the Lua scripts, their keys, and how they are called."""
