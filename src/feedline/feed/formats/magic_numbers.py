"""First bytes of files, by which formats are recognised before their readers are imported."""

ARROW_FILE = b"ARROW1"
"""Of an Arrow IPC file, which also ends with these bytes."""

ARROW_STREAM = b"\xff\xff\xff\xff"
"""Of each message of an Arrow IPC stream."""

CBF = 0x636E746B5F62696E.to_bytes(8, "little")
"""Of a file in CNTK's binary format."""
