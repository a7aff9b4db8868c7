"""Objects in stores: read by ranges, kept in a bounded cache, presented to formats as files."""
