"""Other processes of this machine."""

from __future__ import annotations

import os


def is_running(process: int) -> bool:
    """Return whether there is a process with this id, of any user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
