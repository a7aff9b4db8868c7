"""The names of MXNet 1.9.1 and their support, from names.toml, from which docs/compat/mxnet.md is generated."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from feedline import _facades

NAMES = _facades.read_names(Path(__file__).with_name("names.toml"))

#: ``__all__`` and ``__getattr__`` of a module.
names_of = partial(_facades.names_of, NAMES)
#: A decorator of classes, whose absent members then raise errors that name a replacement.
absent_members = partial(_facades.absent_members, NAMES)
