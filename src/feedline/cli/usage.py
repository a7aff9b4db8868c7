"""The error for wrong arguments, which needs nothing else to be imported."""

from __future__ import annotations


class UsageError(ValueError):
    """An argument on the command line is wrong; the process exits with 2."""
