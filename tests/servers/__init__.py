"""Servers for tests of remote data: one of ours with faults on purpose, and real ones where they are installed."""
