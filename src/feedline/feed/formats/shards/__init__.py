"""Shards with a table of offsets: MosaicML Streaming and LitData."""
