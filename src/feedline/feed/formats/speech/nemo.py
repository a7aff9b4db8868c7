"""NeMo's manifests: a JSON object for each recording, in files, or in tar archives beside the manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.media_address import MediaAddress
from feedline.feed.files.paths import PathLike, list_files
from feedline.feed.formats.indexed.rows import TextRows
from feedline.feed.formats.jsonl import JSONLinesDeserializer
from feedline.feed.formats.speech.speech_manifest import RATE, SpeechManifest, Utterance, check_duration
from feedline.feed.formats.speech.tar_members import TarMembers
from feedline.feed.protocol import CHUNK_MEMORY

TARRED = "tarred_audio_manifest.json"
"""Name of the manifest in a folder with archives."""

_COLUMNS = {
    "audio_filepath": Stream(dtype="str"),
    "duration": Stream((), "float64", missing=0.0),
    "offset": Stream((), "float64", missing=math.nan),
    "text": Stream(dtype="str", missing=""),
    "shard_id": Stream((), "int64", missing=-1),
}


class NeMoDeserializer(SpeechManifest):
    """The recordings of NeMo manifests: lines with ``audio_filepath``, ``duration``, ``text`` and maybe ``offset``.

    A line is a sequence. Its length, as the minibatch budget counts it, is its duration in samples of ``rate``, which
    is what `audio.Decode` makes of it. Streams are

    - ``audio``: the address of its segment of a file, ``/data/talk.flac#t=1.5,4.25``, from the begin of the file if the
      line has no ``offset``. In a tarred dataset, the encoded recording.
    - ``text``: its text, empty if it has none.
    - ``duration``: float64, in seconds.
    - ``id``: its ``audio_filepath``.

    Args:
        path: a manifest, a list of them (read one after the other), a pattern, or the folder of a tarred dataset, with
            ``tarred_audio_manifest.json`` and ``audio_0.tar`` and so on, to whose numbers ``shard_id`` refers.
        streams: stream name to `Stream`, whose ``field`` is one of the names above, by default the stream's name.
        root: folder from which relative paths start. None: the folder of the manifest, as in NeMo.
        rate: samples per second in which lengths are counted.
        memory: bytes that the rows of a chunk, and their recordings from archives, may take.

    Raises:
        DataError: a manifest is missing, empty or damaged, or an index cannot be written.
        SchemaError: a stream has another field, or a type that the field does not have.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        root: PathLike | None = None,
        rate: int = RATE,
        memory: int = CHUNK_MEMORY,
    ) -> None:
        self._set_arguments(path, streams, root=root, rate=rate, memory=memory)
        if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
            path = Path(path, TARRED)
        paths = list_files(path)
        self._root = None if root is None else os.path.abspath(root)
        archives = sorted(str(file) for manifest in paths if manifest.name == TARRED for file in archives_in(manifest))
        members = TarMembers(_names_of, archives)
        super().__init__(
            paths,
            _COLUMNS,
            streams=streams,
            members=members,
            rate=rate,
            memory_bytes=memory,
        )

    def _utterance(self, row: Mapping[str, Any], part: TextRows, memory_bytes: int) -> Utterance:
        path, offset, duration = row["audio_filepath"], row["offset"], check_duration(row["duration"])
        if not path:
            raise DataError("expected a path as `audio_filepath`, got none")
        if not (math.isnan(offset) or 0 <= offset < 2**40):
            raise DataError(f"expected an offset from 0 s on, got {offset}")
        audio: str | bytes
        folder = os.path.dirname(os.path.abspath(part.file.source))
        if self._archives:
            if offset > 0:
                what = f"expected a whole recording of the archive, got one from {offset} s on"
                raise DataError(what, hint="write the dataset again with a recording for each line")
            archive = os.path.join(folder, f"audio_{row['shard_id']}.tar")
            audio = self._members.read(archive, _names_of(path), memory_bytes)
        else:
            begin = 0.0 if math.isnan(offset) else offset
            audio = str(MediaAddress(os.path.join(self._root or folder, path), begin, begin + duration))
        return Utterance(audio, row["text"], duration, path)


def _names_of(path: str) -> tuple[str, str]:
    """Return the names under which a member of an archive is looked for: its path, then the name of its file."""
    return path.removeprefix("./"), os.path.basename(path)


def archives_in(manifest: Path) -> list[Path]:
    """Return the archives beside a manifest of a tarred dataset."""
    return [file for file in manifest.parent.glob("audio_*.tar") if file.is_file()]


def files_in_manifest(path: str) -> list[str]:
    """Return the paths of the recordings that a manifest names. See `Format.lister`.

    Raises:
        DataError: it cannot be read.
    """
    if os.path.basename(path) == TARRED:
        return []
    rows = JSONLinesDeserializer(path, {"audio_filepath": Stream(dtype="str", missing="")}, sequences=())
    try:
        chunks = [rows.read(number)["audio_filepath"].tolist() for number in range(len(rows.chunks()))]
    finally:
        rows.close()
    names = dict.fromkeys(name for chunk in chunks for name in chunk if name)
    return [os.path.join(os.path.dirname(path), name) for name in names]
