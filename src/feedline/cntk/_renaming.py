"""Whether named functions may be renamed: in CNTK, only after `cntk_py.allow_renaming_functions`."""

from __future__ import annotations

from types import SimpleNamespace

renaming = SimpleNamespace(allowed=False)
