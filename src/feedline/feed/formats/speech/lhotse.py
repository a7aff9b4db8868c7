"""Lhotse's cuts, in files of JSON lines, and Lhotse Shar, where their recordings are in archives beside them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.media_address import MediaAddress
from feedline.feed.files.paths import PathLike, list_files, looking
from feedline.feed.formats.indexed.rows import TextRows
from feedline.feed.formats.speech.speech_manifest import RATE, SpeechManifest, Utterance, check_duration
from feedline.feed.formats.speech.tar_members import TarMembers
from feedline.feed.protocol import CHUNK_MEMORY

_SHAR = re.compile(r"cuts\.(.+)\.jsonl(?:\.gz|\.zst)?")
_TOLERANCE_S = 0.025  # by which the recording of a cut in Shar may be shorter than the cut
_COLUMNS = {
    "id": Stream(dtype="str"),
    "type": Stream(dtype="str", missing="MonoCut"),
    "start": Stream((), "float64", missing=0.0),
    "duration": Stream((), "float64", missing=0.0),
    "channel": Stream(dtype="bytes", missing=b"0"),
    "recording": Stream(dtype="bytes", missing=b"null"),
    "supervisions": Stream(dtype="bytes", missing=b"[]"),
}


class LhotseDeserializer(SpeechManifest):
    """The cuts of Lhotse manifests, ``cuts.jsonl`` or ``cuts.jsonl.gz``, and of folders in Lhotse Shar.

    A `MonoCut` is a sequence. Its length, as the minibatch budget counts it, is its duration in samples of ``rate``,
    which is what `audio.Decode` makes of it. Streams are

    - ``audio``: the address of its segment of a file, ``/data/talk.flac#t=1.5,4.25``. In Shar, where the recording of a
      cut is stored beside it, the encoded recording.
    - ``text``: the texts of its supervisions, with blanks in between.
    - ``duration``: float64, in seconds.
    - ``id``: its id.

    A cut of another kind, of several channels, or without a recording in a file is unreadable. So is one with
    ``transforms``, such as a changed speed, which Lhotse applies as it loads. A `Resample` to ``rate`` is left to
    `audio.Decode`.

    Args:
        path: a manifest, a list of them (read one after the other), a pattern, or a folder in Shar, with
            ``cuts.000000.jsonl.gz`` and ``recording.000000.tar``.
        streams: stream name to `Stream`, whose ``field`` is one of the names above, by default the stream's name.
        root: folder from which relative paths start. None: the current one, as in Lhotse.
        rate: samples per second in which lengths are counted.
        memory: bytes that the rows of a chunk, and in Shar their recordings, may take.

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
        paths = _manifests(path)
        self._root = os.path.abspath("." if root is None else root)
        self._archive_of = {str(manifest): archive for manifest in paths if (archive := _archive_beside(manifest))}
        super().__init__(
            paths,
            _COLUMNS,
            streams=streams,
            members=TarMembers(_ids_of, self._archive_of.values()),
            rate=rate,
            memory_bytes=memory,
        )

    def _utterance(self, row: Mapping[str, Any], part: TextRows, memory_bytes: int) -> Utterance:
        if row["type"] != "MonoCut":
            what = f"expected a MonoCut, got {row['type']!r:.60}"
            raise DataError(what, hint="write a manifest of MonoCuts: mix or concatenate them in minibatches instead")
        recording, channel = json_of(row, "recording"), json_of(row, "channel")
        if not isinstance(recording, dict):
            raise DataError("expected a cut with a recording, got one without")
        _check_transforms(recording, self._rate)
        source = _source_of(recording, channel)
        begin, duration = row["start"], check_duration(row["duration"])
        if not 0 <= begin < 2**40:
            raise DataError(f"expected a start from 0 s on, got {begin}")
        audio: str | bytes
        if self._archives:
            archive = self._archive_of.get(str(part.file.source))
            _check_stored(archive, recording, source, begin, duration)
            audio = self._members.read(str(archive), [row["id"]], memory_bytes)
        elif source.get("type") != "file":
            what = f"expected a recording in a file, got one of type {source.get('type')!r:.60}"
            shar = "put recording.NAME.tar beside cuts.NAME.jsonl.gz" if source.get("type") == "shar" else None
            raise DataError(what, hint=shar or "save recordings in files, or write the cuts with to_shar")
        else:
            audio = str(MediaAddress(os.path.join(self._root, _text(source, "source")), begin, begin + duration))
        return Utterance(audio, _texts(json_of(row, "supervisions")), duration, row["id"])


def _check_stored(
    archive: str | None, recording: Mapping[str, Any], source: Mapping[str, Any], begin_s: float, duration_s: float
) -> None:
    """Check that a recording in Shar is all of its cut, and no more.

    Raises:
        DataError: it is not.
    """
    if archive is None or source.get("type") != "shar":
        raise DataError(
            "expected a recording in an archive of Shar, as other cuts have one",
            hint="open manifests with and without archives separately",
        )
    stored = recording.get("duration")
    low, high = duration_s - _TOLERANCE_S, duration_s + _TOLERANCE_S
    whole = isinstance(stored, (int, float)) and begin_s == 0 and low <= stored <= high
    if not whole:
        got = f"{begin_s} s to {begin_s + duration_s} s of {stored!r:.20}"
        what = f"expected a cut of its whole recording in Shar, got {got}"
        raise DataError(what, hint="write the cuts again with to_shar")


def json_of(row: Mapping[str, Any], name: str) -> Any:
    """Return a value of a row that is delivered as its JSON text.

    Raises:
        DataError: it is damaged.
    """
    try:
        return json.loads(row[name])
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected JSON in `{name}`: {str(error) or type(error).__name__}") from error


def _manifests(path: PathLike | Sequence[PathLike]) -> list[Path]:
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        with looking(path):
            found = sorted(file for file in Path(path).iterdir() if _SHAR.fullmatch(file.name))
        if not found:
            raise DataError("expected a folder with cuts.*.jsonl.gz, got none", path=os.fspath(path))
        return found
    return list_files(path)


def _archive_beside(manifest: Path) -> str | None:
    """Return the archive with the recordings of a manifest in Shar, or None if there is none."""
    match = _SHAR.fullmatch(manifest.name)
    archive = match and manifest.with_name(f"recording.{match[1]}.tar")
    return str(archive) if archive and archive.is_file() else None


def _ids_of(member: str) -> list[str]:
    """Return the id of the cut whose recording a member is: its path without the suffix of its format."""
    name, dot, suffix = member.rpartition(".")
    return [name] if dot and suffix not in ("json", "nodata", "nometa") else []


def _check_transforms(recording: Mapping[str, Any], rate: int) -> None:
    """Check that a recording is to be delivered as it is stored, or only at the rate that lengths are counted in.

    Raises:
        DataError: it is not.
    """
    transforms = recording.get("transforms")
    if not transforms:
        return
    if not isinstance(transforms, list):
        raise DataError(f"expected a list of transforms of a recording, got {transforms!r:.60}")
    for transform in transforms:
        name = transform.get("name") if isinstance(transform, dict) else transform
        if name != "Resample":
            raise DataError(
                f"expected a recording without transforms, got one with {name!r:.60}",
                hint="save its cuts with to_shar, which applies transforms, or leave the transform out",
            )
    targets = [_target_of(transform) for transform in transforms]
    if targets != [rate] or recording.get("sampling_rate") != rate:
        raise DataError(
            f"expected one Resample, to rate={rate}, got targets {targets!r:.60}",
            hint="pass its target as rate= here and to audio.Decode, save the cuts with to_shar, or leave it out",
        )


def _target_of(transform: Mapping[str, Any]) -> Any:
    """Return the rate to which a transform of Lhotse resamples."""
    settings = transform.get("kwargs")
    return settings.get("target_sampling_rate") if isinstance(settings, dict) else None


def _source_of(recording: Mapping[str, Any], channel: Any) -> Mapping[str, Any]:
    """Return the source of a recording that has the channel, and no other one.

    Raises:
        DataError: there is none.
    """
    sources = recording.get("sources")
    for source in sources if isinstance(sources, list) else []:
        channels = source.get("channels") if isinstance(source, dict) else None
        if isinstance(channels, list) and channel in channels:
            if len(channels) == 1:
                alone: Mapping[str, Any] = source
                return alone
            raise DataError(
                f"expected a source with channel {channel!r:.20} alone, got channels {channels!r:.60}",
                hint="write each channel as a recording of its own",
            )
    raise DataError(f"expected a source with channel {channel!r:.20}, got {sources!r:.80}")


def _text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name)
    if not isinstance(text, str) or not text:
        raise DataError(f"expected text as `{name}`, got {text!r:.60}")
    return text


def _texts(supervisions: Any) -> str:
    if not isinstance(supervisions, list):
        raise DataError(f"expected a list of supervisions, got {supervisions!r:.60}")
    texts = [segment.get("text") for segment in supervisions if isinstance(segment, dict)]
    return " ".join(text for text in texts if isinstance(text, str) and text)
