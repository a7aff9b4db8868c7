"""Programs that are slow for a reason, and healthy ones, for `feedline doctor` to examine while they run."""
