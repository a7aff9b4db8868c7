"""The streams of CNTK text, inferred from its first bytes."""

from __future__ import annotations

import os

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.paths import open_regular

_MAX_DIGITS = 20  # of a sparse index


def infer_ctf_streams(path: str | os.PathLike[str], scan_bytes: int = 4 << 20) -> dict[str, Stream]:
    """Infer the float32 streams of a CTF file, in order of appearance, from its first bytes.

    A dense stream has as many values as its longest sample, a sparse stream (``index:value``) as many classes as its
    highest index plus one. If later text has more, declare the streams yourself.

    Args:
        path: path of the file.
        scan_bytes: bytes to scan.

    Raises:
        DataError: there is no sample, a stream is both dense and sparse, or has no value.
    """
    name = os.fspath(path)
    try:
        with open_regular(path) as file:
            text = file.read(scan_bytes)
            complete = len(file.read(1)) == 0
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror}", path=name) from error
    if not complete:
        # The last line is incomplete. Drop it unless it is the only one.
        text = text[: text.rfind(b"\n") + 1] or text
    sizes: dict[str, int] = {}
    kinds: dict[str, bool | None] = {}
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        for sample in line.split(b"|")[1:]:
            field, _, body = sample.replace(b"\t", b" ").partition(b" ")
            if field.startswith(b"#") or not field.strip():
                continue
            _add_sample(
                field.strip().decode("utf-8", "replace"), body.split(), kinds=kinds, sizes=sizes, path=name, line=number
            )
    if not kinds:
        raise DataError(
            "expected CTF text with samples such as `|x 1 2 3`, got none",
            path=name,
            hint="for other text write a deserializer (fl.UserDeserializer), or convert it to CSV or Parquet",
        )
    if unknown := [field for field, kind in kinds.items() if kind is None]:
        raise DataError(
            f"expected values of `{unknown[0]}` to infer its shape from, got none in the first {len(text)} bytes",
            path=name,
            stream=unknown[0],
            hint=f"declare it: {unknown[0]}=fl.Stream(shape=..., sparse=...)",
        )
    return {field: Stream(sizes[field], sparse=bool(kind)) for field, kind in kinds.items()}


def _add_sample(
    field: str, values: list[bytes], *, kinds: dict[str, bool | None], sizes: dict[str, int], path: str, line: int
) -> None:
    kinds.setdefault(field, None)
    if not values:
        return
    sparse = b":" in values[0]
    if any((b":" in value) != sparse for value in values) or kinds[field] not in (None, sparse):
        raise DataError("expected either numbers or index:value pairs, got both", path=path, line=line, stream=field)
    size = len(values)
    if sparse:
        indices = [value.split(b":")[0] for value in values]
        if wrong := [v for v, i in zip(values, indices, strict=True) if not i.isdigit() or len(i) > _MAX_DIGITS]:
            raise DataError(
                f"expected index:value pairs, got `{wrong[0][:80].decode('utf-8', 'replace')}`",
                path=path,
                line=line,
                stream=field,
                hint=f"declare the streams, so that nothing is inferred from such text: {field}=fl.Stream(...)",
            )
        size = 1 + max(map(int, indices))
    kinds[field] = sparse
    sizes[field] = max(sizes.get(field, 0), size)
