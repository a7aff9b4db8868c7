"""Corpora of files with many sequences each, and an index of the places of all sequences."""
