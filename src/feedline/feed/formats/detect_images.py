"""Recognise the files and folders that `images` reads: folders of classes, map files and base64 files."""

from __future__ import annotations

import os
import re
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of picture files, from torchvision's list."""


def is_image_folder(path: Path) -> bool:
    """Return whether a folder has folders of pictures. Looks at a few files in a few folders."""
    folders = 0
    for entry in os.scandir(path):
        if entry.is_dir() and not entry.name.startswith("."):
            for k, file in enumerate(os.scandir(entry.path)):
                if file.name.lower().endswith(SUFFIXES) and file.is_file():
                    return True
                if k >= 16:
                    break
            folders += 1
            if folders >= 8:
                break
    return False


_MAP = re.compile(
    rb"([^\t\r\n]*\t)?[^\t\r\n]+(\.(jpe?g|png|ppm|bmp|pgm|tiff?|webp)|@[^\t\r\n]+)\t[0-9]+\r?(\n|\Z)", re.IGNORECASE
)
_BASE64 = re.compile(rb"([^\t\r\n]*\t)?[0-9]+\t[A-Za-z0-9+/]{40,}")


def is_map(path: Path, head: bytes) -> bool:
    """Return whether a file begins with a line of an image map."""
    return _MAP.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def is_base64(path: Path, head: bytes) -> bool:
    """Return whether a file begins with a line of a base64 file."""
    return _BASE64.match(head.removeprefix(b"\xef\xbb\xbf")) is not None
