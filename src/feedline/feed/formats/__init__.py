"""Where bytes become chunks: one file a format, each a `Deserializer`."""
