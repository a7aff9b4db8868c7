"""Recognise manifests of speech by the keys of their first row, and folders with archives by the names in them."""

from __future__ import annotations

import re
from pathlib import Path

# In the order in which Lhotse writes them.
_CUT = re.compile(rb'\s*\{\s*"id":\s*"(?:[^"\\]|\\.)*",\s*("start":\s*[-+.0-9eE]+,\s*"duration":|"tracks":\s*\[)')
_NEMO = re.compile(rb'\s*\{\s*"audio_filepath":\s*"')


def is_lhotse(path: Path, head: bytes) -> bool:
    """Return whether a text begins with one of Lhotse's cuts."""
    return _CUT.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def is_shar(path: Path) -> bool:
    """Return whether a folder has cuts and their recordings as Lhotse's ``to_shar`` writes them."""
    return any(path.glob("cuts.*.jsonl*")) and any(path.glob("recording.*.tar"))


def is_nemo(path: Path, head: bytes) -> bool:
    """Return whether a text begins with a row of NeMo's manifests."""
    row = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    return _NEMO.match(row) is not None and b'"duration"' in row


def is_tarred(path: Path) -> bool:
    """Return whether a folder is a tarred dataset of NeMo."""
    return (path / "tarred_audio_manifest.json").is_file() and any(path.glob("audio_*.tar"))
