"""Threads that survive Ctrl-C and forks, and state that belongs to one process or one call."""
