"""Objects in stores: read by ranges, kept in a bounded cache, seen by formats as files."""
