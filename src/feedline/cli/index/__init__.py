"""``feedline index``: write indexes beside the files of a corpus."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from feedline.cli.arguments import Streams, parse_columns, parse_streams
from feedline.cli.console import Debug, Json, print_json, stdout
from feedline.feed.conversion.shipped_indexes import index as write_indexes


def index(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Files, folders, quoted patterns or addresses of one format: 's3://bucket/*.tar'."
        ),
    ],
    to: Annotated[
        str | None, typer.Option(help="Folder, or address of one, for the indexes. Default: beside the files.")
    ] = None,
    stream: Streams = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write an index beside each file, so that machines that open the files later need not scan them."""
    is_csv = all(re.search(r"\.(csv|tsv)(\.\w+)?$", path) for path in paths)
    declared = parse_columns(stream) if is_csv else parse_streams(stream)
    written = write_indexes(paths if len(paths) > 1 else paths[0], to=to, streams=declared or None)
    if json:
        print_json({"indexes": written})
    else:
        for place in written:
            stdout().print(place, soft_wrap=True)
