"""The version of feedline, for whoever records or prints it."""

__version__ = "0.1.0"
