"""Small JSON files that say that a piece of work is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import open_file


def record(path: Path, values: Any) -> None:
    """Write ``values``, in JSON types; they are on disk when this returns.

    Raises:
        DataError: no space is left.
        OSError: the folder is not writable.
    """
    with atomic_file(path) as file:
        file.write(json.dumps(values).encode())


def recorded(path: Path) -> Any:
    """Return what `record` wrote; None if it did not."""
    if not path.is_file():
        return None
    with open_file(path) as file:
        return json.loads(file.read())
