"""The description by which a format is recognised and opened, and the formats of other packages."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedline.data import Stream
from feedline.errors import DataError, FeedlineError, SchemaError, shown_path
from feedline.feed.files.paths import name_of
from feedline.feed.protocol import Deserializer

#: Entry points of this group are `Format` records.
GROUP = "feedline.formats"


class Format(NamedTuple):
    """How a format is recognised and opened, for `open_corpus` and all other functions of paths.

    A package adds a format as an entry point of the group ``feedline.formats``, see docs/how-to/own-format.md. Built-in
    formats come first.

    Attributes:
        name: name in `feedline inspect`.
        description: name with an article, in errors: ``"a CSV file"``.
        opener: ``"module:function"``, imported when it is needed. ``function(paths, streams, memory)`` returns a
            `Deserializer` for the files, in this order, or for one folder. ``streams`` are the declared `Stream`
            objects by name, or none. ``memory`` is the number of bytes that a decoded chunk may take. Or the name of
            a class, which is called like feedline's deserializers: with the path or a list of paths, streams or None,
            and ``memory=``.
        begins: whether a file is of this format, by its path and its first 512 bytes.
        folder: whether a whole folder is of this format.
        inside: pattern of its files in a folder, at any depth, for a folder that is not of this format as a whole;
            None: its files directly in the folder are recognised one by one.
        several: whether the opener takes several files.
        suffixes: suffixes of its files, in lower case with their dot, for files that cannot be recognised by bytes.
        packed: whether its files may be packed by gzip or Zstandard, with another suffix after theirs.
        loose: whether a folder is of this format because of the files in it, even if it has others.
        lists: the ``"module:function"`` that returns the paths of the files that a file of this format lists. Relative
            paths start from its folder. None: it lists no files.
    """

    name: str
    description: str
    opener: str
    begins: Callable[[Path, bytes], bool] = lambda path, head: False
    folder: Callable[[Path], bool] = lambda path: False
    inside: str | None = None
    several: bool = False
    suffixes: tuple[str, ...] = ()
    packed: bool = False
    loose: bool = False
    lists: str | None = None

    def open(self, paths: list[str], streams: Mapping[str, Stream], memory: int) -> Deserializer:
        """Open files of this format.

        Raises:
            DataError: the opener takes a single file.
            SchemaError: data cannot be streams, see the opener. The error names the files.
        """
        if len(paths) > 1 and not self.several:
            raise DataError(
                f"expected {self.description}, got {len(paths)}, which cannot be read as one corpus",
                path=paths[0],
                hint="open one, or convert each and train on one store after the other",
            )
        opener: Callable[..., Deserializer] = _named(self.opener)
        is_class = isinstance(opener, type)
        try:
            if is_class:
                return opener(paths if len(paths) > 1 else paths[0], streams or None, memory=memory)
            return opener(paths, streams, memory)
        except SchemaError as error:
            message = str(error)
            for path in paths:  # the path of an object leads to its placeholder in the cache
                message = message.replace(path, shown_path(path))
            if not any(shown_path(path) in message for path in paths):
                message += f"\n  at {name_of(paths)}"
            if message == str(error):
                raise
            raise SchemaError(message) from error

    def listed(self, path: str) -> list[str]:
        """Return the paths of the files that a file of this format lists.

        Raises:
            DataError: the file cannot be read, or is damaged.
        """
        if self.lists is None:
            return []
        finds: Callable[[str], list[str]] = _named(self.lists)
        return finds(path)


def _named(what: str) -> Any:
    """Import ``"module:function"``."""
    module, _, function = what.partition(":")
    return getattr(importlib.import_module(module), function)


@functools.lru_cache(maxsize=1)
def installed_formats(builtin: tuple[Format, ...], path: tuple[str, ...]) -> tuple[Format, ...]:
    """Return the formats of installed packages, by their names.

    Args:
        builtin: formats of feedline, whose names are taken.
        path: ``sys.path``. Packages are looked up once, and again when it changes.

    Raises:
        FeedlineError: an entry is no `Format` or cannot be imported, or a name is taken. The error names the packages.
    """
    from importlib.metadata import entry_points  # takes longer than most files take to open

    formats: dict[str, Format] = {}
    owners = {form.name: "feedline" for form in builtin}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.module
        where = f"\n  at entry point `{entry.name} = {entry.value}` of package {package}\n  repair or uninstall it"
        try:
            form = entry.load()
        except Exception as error:
            raise FeedlineError(f"expected a feedline.Format, got {type(error).__name__}: {error}{where}") from error
        if not isinstance(form, Format):
            raise FeedlineError(f"expected a feedline.Format, got {type(form).__name__}{where}")
        if form.name in owners:
            raise FeedlineError(
                f"expected one format `{form.name}`, got another one in addition to {owners[form.name]}'s{where}"
            )
        formats[form.name], owners[form.name] = form, f"package {package}"
    return tuple(formats[name] for name in sorted(formats))
