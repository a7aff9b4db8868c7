"""Tables whose files a log lists: Delta, Iceberg and Hudi. Their folders also have files that are no longer in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from feedline.errors import DataError


class _TableKind(NamedTuple):
    """A kind of table.

    Attributes:
        mark: pattern of a file or folder that such a table has.
        name: name with an article.
        files: expression that returns its files.
    """

    mark: str
    name: str
    files: str


_TABLE_KINDS = (
    _TableKind("_delta_log", "a Delta table", "deltalake.DeltaTable(path).file_uris()"),
    _TableKind(
        "metadata/*.metadata.json",
        "an Iceberg table",
        "[task.file.file_path for task in table.scan().plan_files()], of pyiceberg",
    ),
    _TableKind(".hoodie", "a Hudi table", "hudi.HudiTable(path).get_file_slices(), which have their paths"),
)

_MAX_DEPTH = 2  # of a folder in a table: Iceberg's `data`, and one for a value that files have in common


def refuse_tables(folder: Path, files: Iterable[Path]) -> None:
    """Check that a folder of Parquet files, relative to it, is no such table, has none in it, and is in none.

    Raises:
        DataError: it is one, or has one.
    """
    inner = {parent for file in files for parent in file.parents}
    outer = folder.absolute().parents[:_MAX_DEPTH]
    for place in (*outer, folder, *sorted(folder / parent for parent in inner - {Path()})):
        for kind in _TABLE_KINDS:
            if next(place.glob(kind.mark), None) is not None:
                raise DataError(
                    f"expected a folder whose Parquet files are all of the data, got {kind.name}, whose log says which "
                    "of them are",
                    path=str(place),
                    hint=f"pass the list of its files, as its library gives them: {kind.files}",
                )
