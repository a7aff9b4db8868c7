"""The version of feedline, for whoever records or prints it."""

__version__ = "1.0.0rc1"
