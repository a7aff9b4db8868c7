"""``feedline convert``: convert a corpus to a store."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, Jobs, SchemaOption, Streams, parse_count
from feedline.cli.console import Debug, Json, UsageError, print_facts, print_json, progress, show_bytes, show_count
from feedline.cli.corpus import open_path
from feedline.feed.composed.texts.tokenized import Tokenized
from feedline.feed.conversion.convert import ConversionSummary
from feedline.feed.conversion.convert import convert as convert_corpus
from feedline.feed.formats.store.compressed import CODECS
from feedline.feed.protocol import CHUNK_MEMORY


def convert(
    source: Annotated[str, typer.Argument(help="File, folder, quoted pattern or address, in any format.")],
    destination: Annotated[str, typer.Argument(help="Folder of the new store, or its address: s3://bucket/folder.")],
    stream: Streams = None,
    schema: SchemaOption = "strict",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store of that name.")] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Write behind the sequences of a store of that name.")
    ] = False,
    skip_errors: Annotated[bool, typer.Option("--skip-errors", help="Skip unreadable sequences.")] = False,
    skip: Annotated[
        list[Path] | None,
        typer.Option(help="Leave out the sequences that a quarantine file lists; repeat it for several files."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="tokenizer.json", help="Tokenize the texts, with the library tokenizers.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Stream of the texts to tokenize, if there are several.")] = None,
    append_token: Annotated[str | None, typer.Option(metavar="TOKEN", help="Token to append to every text.")] = None,
    compression: Annotated[
        str | None, typer.Option(help="lz4, zstd, or auto: the first that shrinks the data by a third.")
    ] = None,
    shuffle: Annotated[int | None, typer.Option(help="Write in random order, with this seed.", min=0)] = None,
    memory: Annotated[
        str, typer.Option(help="Limit of memory for shuffling, such as 1GiB. Above 2GiB, also for a chunk of SOURCE.")
    ] = "1GiB",
    jobs: Jobs = 1,
    executor: Annotated[
        str, typer.Option(help="local, or ray: --jobs workers of Ray read the source, on any machine of the cluster.")
    ] = "local",
    work: Annotated[
        Path | None, typer.Option(help="For an address: folder for files that are not uploaded yet.")
    ] = None,
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Convert a corpus to a store, all or nothing. After an interrupt the same command continues."""
    if compression is not None and compression not in (*CODECS, "auto"):
        raise UsageError(f"expected --compression {', '.join(CODECS)} or auto, got {compression!r}")
    if executor not in ("local", "ray"):
        raise UsageError(f"expected --executor local or ray, got {executor!r}")
    on_error: Literal["raise", "skip"] = "skip" if skip_errors else "raise"
    memory_bytes = max(parse_count(memory), CHUNK_MEMORY)
    if tokenizer is None and (text is not None or append_token is not None):
        raise UsageError("expected --tokenizer with --text or --append-token, got none")
    corpus, _, guessed, *_ = open_path(source, stream, chunk_size, schema, memory=memory_bytes)
    with contextlib.closing(corpus), progress("converting") as show:
        if tokenizer is not None:
            corpus = Tokenized(corpus, tokenizer, text=text, append=append_token)
        done = convert_corpus(
            corpus,
            destination,
            jobs=jobs,
            executor=cast(Literal["local", "ray"], executor),
            overwrite=overwrite,
            append=append,
            on_error=on_error,
            skip=skip,
            progress=show,
            compression=compression,
            shuffle=shuffle,
            memory=parse_count(memory),
            work=work,
        )
    _report(source, done, guessed, json)


def _report(source: str, done: ConversionSummary, guessed: bool, json: bool) -> None:
    if json:
        print_json(
            {
                "source": source,
                "store": done.path,
                "streams": list(done.schema),
                "streams_guessed": guessed,
                "sequences": done.sequences,
                "samples": done.samples,
                "bytes": done.bytes,
                "skipped": done.skipped,
            }
        )
        return
    facts = {
        "streams": ", ".join(f"{n} {s.shape}{' sparse' if s.sparse else ''}" for n, s in done.schema.items()),
        "sequences": show_count(done.sequences),
        "samples": show_count(done.samples),
        "written": show_bytes(done.bytes),
    }
    if done.skipped:
        facts["skipped"] = f"{show_count(done.skipped)} unreadable"
    if guessed:
        facts["guessed"] = (
            "from the beginning of the text: streams that occur only later are missing; declare them with --stream to "
            "be sure"
        )
    print_facts(f"{source} -> {done.path}", facts)
