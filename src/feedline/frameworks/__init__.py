"""Loaders by the contracts of frameworks that make their own. Each module imports its framework."""
