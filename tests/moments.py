"""Something that happens at an exact moment: when the n-th line of certain code is about to run."""

from __future__ import annotations

import sys
from pathlib import Path


class AtLine:
    """Calls ``act`` before the n-th line that the block runs of some modules, in this thread.

    Args:
        n: from 0.
        act: called without arguments. The line raises its exceptions.
        *modules: modules whose files count. Of a package, all files in its folder.

    Attributes:
        reached: whether the block ran that many lines.
    """

    def __init__(self, n, act, *modules):
        self.left, self.act, self.reached = n, act, False
        files = [Path(module.__file__) for module in modules]
        self.places = tuple(f"{file.parent}/" if file.name == "__init__.py" else str(file) for file in files)

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _trace(self, frame, event, argument):
        if self.reached or not frame.f_code.co_filename.startswith(self.places):
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                self.reached = True
                sys.settrace(self.before)
                self.act()
        return self._trace
