"""Frameworks over feedline's DataLoader: the same programs on torch's loader and on ours, compared."""
