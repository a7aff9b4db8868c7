"""The version of feedline."""

__version__ = "1.0.0rc1"
