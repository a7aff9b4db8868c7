"""Samples with their neighbours in time."""
