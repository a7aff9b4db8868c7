"""feedline feeds training: same order every time, from any point, larger than memory.

`__init__.pyi` lists the public names, once. Frameworks and pyarrow are imported at first use.
"""

import importlib as _importlib
import os as _os

from feedline._version import __version__ as __version__

# Importing the package costs next to nothing: a name imports its module at first use. A line of the stub is `from
# module import name as name`. The module of a subpackage is `feedline`.
with open(f"{__file__}i", encoding="utf-8") as _stub:
    _MODULES = {words[3]: words[1] for words in map(str.split, _stub) if words[:1] == ["from"]}
__all__ = [name for name, module in _MODULES.items() if module not in ("feedline", "feedline._version")]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'feedline' has no attribute {name!r}")
    if _MODULES[name] == "feedline":
        return _importlib.import_module(f"feedline.{name}")
    value = globals()[name] = getattr(_importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


if _os.environ.get("FEEDLINE_DOCTOR", "0") not in ("", "0"):
    _importlib.import_module("feedline.probes.examined_program").start()
