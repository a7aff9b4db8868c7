"""Manifests of speech: rows of JSON that name recordings, or segments of them, with their texts and durations."""
