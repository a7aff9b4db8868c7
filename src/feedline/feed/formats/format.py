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
from feedline.feed.formats.widening import SchemaRule, is_union
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
        opener: ``"module:function"`` or ``"module:Class"``, imported when it is needed. A function is called as
            ``function(paths, streams, memory)`` and returns a `Deserializer` for the files, in this order, or for one
            folder. ``streams`` is a mapping of the declared `Stream` objects by name, and may be empty. ``memory`` is
            the number of bytes that a decoded chunk may take. A class is called like feedline's deserializers: with
            the path or a list of paths, the streams or None, and ``memory=``.
        matches_file: function of a path and the first 512 bytes of the file that returns whether the file is of this
            format.
        matches_folder: function of a path that returns whether the folder as a whole is of this format.
        folder_contains: pattern such as ``"*.parquet"``. A folder with a file that fits it, at any depth, is of this
            format as a whole. Without a pattern, the files directly in a folder are recognised one by one.
        multiple_files: whether the opener takes several files as one corpus.
        suffixes: suffixes of its files, such as ``(".csv",)``, in lower case. A file that no format recognises by its
            first bytes is of the format that has its suffix.
        may_be_compressed: whether its files may be compressed by gzip or Zstandard. Such a file has another suffix
            after its own, as in ``data.csv.gz``.
        ignores_other_files: whether a folder of this format may have files of other formats, which are not read. A
            warning names them.
        lister: ``"module:function"``, if files of this format list other files, as an image map does. The function
            takes the path of such a file and returns the paths in it. Relative paths start from its folder.
        unites_schemas: whether the opener is a class that takes ``schema="union"``, for files whose schemas differ.
    """

    name: str
    description: str
    opener: str
    matches_file: Callable[[Path, bytes], bool] = lambda path, head: False
    matches_folder: Callable[[Path], bool] = lambda path: False
    folder_contains: str | None = None
    multiple_files: bool = False
    suffixes: tuple[str, ...] = ()
    may_be_compressed: bool = False
    ignores_other_files: bool = False
    lister: str | None = None
    unites_schemas: bool = False

    def open(
        self, paths: list[str], streams: Mapping[str, Stream], memory: int, schema: SchemaRule = "strict"
    ) -> Deserializer:
        """Open files of this format.

        Raises:
            DataError: there are several files, and the opener takes one.
            ValueError: the schemas of files may differ, and the format has none.
            SchemaError: the data do not fit the streams. The error names the files.
        """
        if len(paths) > 1 and not self.multiple_files:
            raise DataError(
                f"expected {self.description}, got {len(paths)}, which cannot be read as one corpus",
                path=paths[0],
                hint="open one, or convert each and train on one store after the other",
            )
        options = {"schema": schema} if is_union(schema) else {}
        if options and not self.unites_schemas:
            raise ValueError(f"expected a format whose files have schemas for schema='union', got {self.description}")
        opener: Callable[..., Deserializer] = import_object(self.opener)
        is_class = isinstance(opener, type)
        try:
            if is_class:
                return opener(paths if len(paths) > 1 else paths[0], streams or None, memory=memory, **options)
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

    def listed_files(self, path: str) -> list[str]:
        """Return the paths of the files that a file of this format lists.

        Raises:
            DataError: the file cannot be read, or is damaged.
        """
        if self.lister is None:
            return []
        lister: Callable[[str], list[str]] = import_object(self.lister)
        return lister(path)


def import_object(reference: str) -> Any:
    """Import ``"module:function"`` or ``"module:Class"``."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.lru_cache(maxsize=1)
def installed_formats(builtin: tuple[Format, ...], sys_path: tuple[str, ...]) -> tuple[Format, ...]:
    """Return the formats of installed packages, sorted by name.

    Args:
        builtin: formats of feedline, whose names are taken.
        sys_path: ``sys.path``. Packages are looked up once, and again when it changes.

    Raises:
        FeedlineError: an entry point is no `Format` or cannot be imported, or its name is taken. The error names the
            packages.
    """
    from importlib.metadata import entry_points  # takes longer than most files take to open

    formats: dict[str, Format] = {}
    owners = {fmt.name: "feedline" for fmt in builtin}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.module
        where = f"\n  at entry point `{entry.name} = {entry.value}` of package {package}\n  repair or uninstall it"
        try:
            fmt = entry.load()
        except Exception as error:
            raise FeedlineError(f"expected a feedline.Format, got {type(error).__name__}: {error}{where}") from error
        if not isinstance(fmt, Format):
            raise FeedlineError(f"expected a feedline.Format, got {type(fmt).__name__}{where}")
        if fmt.name in owners:
            raise FeedlineError(
                f"expected one format `{fmt.name}`, got another one in addition to that of {owners[fmt.name]}{where}"
            )
        formats[fmt.name], owners[fmt.name] = fmt, f"package {package}"
    return tuple(formats[name] for name in sorted(formats))
