"""Mixtures described in a YAML or JSON file.

A file has the key ``mixture``, a mapping from names to corpora, and any of `Mixture`'s other arguments. A corpus is a
path, relative to the file's folder, or a mapping: ``path`` with further options, or a ``mixture``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from feedline.data import Stream
from feedline.errors import DataError, FeedlineError, install_line, shown
from feedline.feed.composed.mixture import Mixture
from feedline.feed.composed.packed import Packed
from feedline.feed.composed.take import Take
from feedline.feed.files.paths import open_regular
from feedline.feed.files.remote import object_at
from feedline.feed.formats.detect import recognise
from feedline.feed.formats.remote_corpus import open_addresses
from feedline.feed.protocol import Deserializer
from feedline.feed.remote.address_text import is_address, scheme_of, without_file

T = TypeVar("T")

_MIXTURE = ("weights", "temperature", "by", "batches", "batch_size", "block", "when_empty", "max_sweeps", "columns")
_PACKED = ("row", "method", "long", "tokens", "pad", "ignore", "seed")
_STREAM = ("shape", "dtype", "sparse", "field", "defines_size")
_MAX_BYTES = 1 << 24  # size of a file
_MAX_NODES = 1 << 20  # values in a file, with its aliases expanded


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> Deserializer:
    """Open a description. See `open_corpus`.

    Raises:
        DataError: the file is damaged, or describes no mixture.
    """
    path = Path(paths[0])
    with open_regular(path) as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise DataError(f"expected a description of at most {_MAX_BYTES} bytes, got more", path=str(path))
    return _Description(path, memory_bytes).mixture(_parse(path, text))


def _parse(path: Path, text: bytes) -> Any:
    if path.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"expected JSON: {error}", path=str(path)) from error
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"PyYAML, which reads {path}, is not installed; run: {install_line('cli')}, or write it as JSON"
        ) from error
    try:
        return _load(yaml, text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"expected YAML: {error}", path=str(path)) from error


def _load(yaml: Any, text: bytes) -> Any:
    """Return the content of YAML text, whose aliases may expand to no more values than a file without any could hold.

    Raises:
        ValueError: aliases expand to more. A few lines of aliases of aliases can expand to any number of values.
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        sizes: dict[int, int] = {}

        def size(node: Any) -> int:
            if id(node) not in sizes:
                sizes[id(node)] = _MAX_NODES  # final for a node that contains itself
                inner = getattr(node, "value", None)
                nodes = inner if isinstance(inner, list) else []
                parts = [part for entry in nodes for part in (entry if isinstance(entry, tuple) else (entry,))]
                sizes[id(node)] = min(_MAX_NODES, 1 + sum(map(size, parts)))
            return sizes[id(node)]

        if size(root) >= _MAX_NODES:
            raise ValueError(f"expected at most {_MAX_NODES} values, got more, or one that holds itself")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _stream(shape: Any, fields: Mapping[str, Any]) -> Stream:
    return Stream(tuple(shape), **fields)


class _Description:
    """The contents of a file, whose paths are relative to its folder, which may be in an object store."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        self._path, self._memory_bytes = path, memory_bytes

    def mixture(self, content: Any) -> Deserializer:
        """Return the mixture that the file describes."""
        if not isinstance(content, Mapping) or "mixture" not in content:
            raise self._refusal("a mapping with `mixture`", content, "")
        return self.corpus(content, "")

    def corpus(self, description: Any, where: str) -> Deserializer:
        """Return the corpus that is described at a place of the file, such as ``mixture.web``."""
        if isinstance(description, str):
            return self._open(description, {}, where)
        allowed: tuple[str, ...] = ("path", "streams", "take", "packed")
        if isinstance(description, Mapping) and "mixture" in description:
            allowed = ("mixture", "stages", *_MIXTURE)
        entries = self._mapping(description, allowed, where)
        if "mixture" in entries:
            return self._mixture(entries, where)
        if not isinstance(entries.get("path"), str):
            raise self._refusal("a path, or a mapping with `path` or `mixture`", description, where)
        corpus = self._open(entries["path"], entries.get("streams", {}), where)
        if "take" in entries:
            bounds = entries["take"] if isinstance(entries["take"], list) else [entries["take"]]
            corpus = self._make(f"{where}.take", lambda: Take(corpus, *bounds))
        if "packed" in entries:
            options = self._mapping(entries["packed"], _PACKED, f"{where}.packed")
            inner = corpus
            corpus = self._make(f"{where}.packed", lambda: Packed(inner, **options))
        return corpus

    def _mixture(self, entries: Mapping[str, Any], where: str) -> Mixture:
        at = f"{where}.mixture".lstrip(".")
        parts = self._mapping(entries["mixture"], None, at)
        options = {key: entries[key] for key in _MIXTURE if key in entries}
        stages = entries.get("stages", [])
        if not isinstance(stages, list):
            raise self._refusal("a list of stages", stages, f"{where}.stages".lstrip("."))
        declared = []
        for k, stage in enumerate(stages):
            place = f"{where}.stages[{k}]".lstrip(".")
            fields = self._mapping(stage, ("at", "weights"), place)
            if set(fields) != {"at", "weights"}:
                raise self._refusal("`at` and `weights`", stage, place)
            declared.append((fields["at"], fields["weights"]))
        corpora = {name: self.corpus(part, f"{at}.{name}") for name, part in parts.items()}
        return self._make(where or "mixture", lambda: Mixture(corpora, stages=declared, **options))

    def _open(self, path: str, streams: Any, where: str) -> Deserializer:
        declared = {}
        for name, about in self._mapping(streams, None, f"{where}.streams").items():
            at = f"{where}.streams.{name}"
            fields = self._mapping(about, _STREAM, at)
            shape = fields.pop("shape", [])
            declared[name] = self._make(at, functools.partial(_stream, shape, fields))

        def open_part() -> Deserializer:
            stored = object_at(self._path)
            if scheme_of(path) is None and stored is not None:
                path_or_address: Any = f"{stored.url.rpartition('/')[0]}/{path}"
            else:
                path_or_address = without_file(path)
            if is_address(path_or_address):
                return open_addresses(path_or_address, declared, self._memory_bytes)
            form, paths = recognise(self._path.parent / path_or_address)
            return form.open(paths, declared, self._memory_bytes)

        return self._make(where, open_part)

    def _make(self, where: str, make: Callable[[], T]) -> T:
        """Return the result of ``make()``. Its errors about arguments become errors of the file."""
        try:
            return make()
        except FeedlineError as error:
            error.add_note(f"described at `{where}` in {self._path}")
            raise
        except (TypeError, ValueError, IndexError) as error:
            raise DataError(f"`{where}`: {error}", path=str(self._path)) from error

    def _mapping(self, mapping: Any, allowed: tuple[str, ...] | None, where: str) -> dict[str, Any]:
        if not isinstance(mapping, Mapping):
            raise self._refusal("a mapping", mapping, where)
        for key in mapping:
            if not isinstance(key, str) or (allowed is not None and key not in allowed):
                raise self._refusal(f"one of {', '.join(allowed or ('names',))}", key, where)
        return dict(mapping)

    def _refusal(self, expected: str, got: Any, where: str) -> DataError:
        return DataError(f"expected {expected} at `{where or 'the top'}`, got {shown(got, 100)}", path=str(self._path))
