"""Small JSON files that record that a piece of work is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import open_file


def write_record(path: Path, values: Any) -> None:
    """Write ``values``, in JSON types. They are on disk when this returns.

    Raises:
        DataError: no space is left.
        OSError: the folder is not writable.
    """
    with atomic_file(path) as file:
        file.write(json.dumps(values).encode())


def read_record(path: Path) -> Any:
    """Return the values that `write_record` wrote, or None if there is no record."""
    if not path.is_file():
        return None
    with open_file(path) as file:
        return json.loads(file.read())
