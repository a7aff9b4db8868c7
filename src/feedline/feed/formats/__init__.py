"""Formats: one file each, each a `Deserializer` that turns bytes into chunks."""
