"""The layout of Hugging Face's datasets on disk: the files of a split.

===============================  =============================================================================
folder                           files
===============================  =============================================================================
of `save_to_disk`                ``state.json`` names them, next to ``dataset_info.json``
of a `DatasetDict`               ``dataset_dict.json`` names the splits, a folder each
of the cache of `load_dataset`   ``<name>-<split>[-00000-of-00005].arrow`` (``cache-*.arrow`` are results of `map`)
of a dataset on the Hub          Parquet: ``README.md`` or the names of the files name the splits, such as
                                 ``data/train-00000-of-00005.parquet``, in the cache of the Hub below ``snapshots``
===============================  =============================================================================

Nothing else is guessed. A folder of several splits, without the name of one, is an error that lists them.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import DataError
from feedline.feed.files.paths import looking, open_file, status_of
from feedline.feed.formats.arrow.lake_tables import refuse_tables

STATE, INFO, DICT = "state.json", "dataset_info.json", "dataset_dict.json"
INDICES = "indices.arrow"
_MAX_BYTES = 64 << 20  # of a file that describes a dataset
_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}")
# Words in a path that `datasets` takes for the name of a split, and the split.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


class Dataset(NamedTuple):
    """Files of one split, in order.

    Attributes:
        files: paths of the files.
        indices: path of a file of row numbers, if the split is a view of some rows.
        complete: whether `datasets` wrote the files. It writes an end marker into every file.
        spans: begin and end of the Arrow data in each file, if the files have other data, too.
    """

    files: list[Path]
    indices: Path | None = None
    complete: bool = True
    spans: list[tuple[int, int]] | None = None


def is_arrow_dataset(folder: Path) -> bool:
    """Return whether `datasets` wrote a folder in Arrow's format."""
    if (folder / DICT).is_file() or (folder / STATE).is_file():
        return True
    return (folder / INFO).is_file() and any(folder.glob("*.arrow"))


def arrow_dataset(folder: Path, split: str | None) -> Dataset:
    """Return the files of a split in a folder of Arrow files.

    Args:
        folder: the folder.
        split: name of the split, which may be None if there is only one.

    Raises:
        DataError: there are several splits, there is none of that name, or their description is damaged.
    """
    with looking(folder):
        if (folder / DICT).is_file():
            return _from_dict(folder, split)
        if (folder / STATE).is_file():
            return _saved_dataset(folder, split)
        if (folder / INFO).is_file():
            return _cached_dataset(folder, split)
        roots = sorted({path.parent for name in (DICT, STATE, INFO) for path in folder.rglob(name)}, key=os.fsencode)
        if len(roots := [path for path in roots if not set(path.parents) & set(roots)]) == 1:
            return arrow_dataset(roots[0], split)
        if roots:
            raise DataError(
                f"expected one dataset, got {len(roots)}: {', '.join(str(p.relative_to(folder)) for p in roots)}"[:800],
                path=str(folder),
                hint="open one by its path",
            )
        paths = [p.relative_to(folder) for p in folder.rglob("*.arrow") if p.is_file()]
    paths = [p for p in paths if not any(part.startswith((".", "_")) for part in p.parts)]
    if split is not None:
        raise DataError(f"expected a dataset with the split {split!r}, got no {DICT} or {INFO}", path=str(folder))
    if not paths:
        raise DataError("expected *.arrow files in the folder, got none", path=str(folder))
    return Dataset([folder / p for p in sorted(paths, key=os.fsencode)], complete=False)


def _from_dict(folder: Path, split: str | None) -> Dataset:
    splits = read_json(folder / DICT).get("splits")
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    if not names:
        raise DataError("expected a list of splits, got none", path=str(folder / DICT))
    name = _choose_split(names, split, folder, lambda name: repr(str(folder / name)))
    if Path(name).name != name:
        raise DataError(f"expected the name of a folder as a split, got {name!r}", path=str(folder / DICT))
    return _saved_dataset(folder / name, None)


def _saved_dataset(folder: Path, split: str | None) -> Dataset:
    state = read_json(folder / STATE)
    folder_split = state.get("_split")
    if split is not None and split != folder_split:
        raise DataError(f"expected the split {split!r}, got a folder of {folder_split or 'no'} split", path=str(folder))
    files = _file_paths(folder, state.get("_data_files"))
    if not files and state.get("_data_files") == []:
        raise DataError("expected at least one row, got a split without any", path=str(folder))
    if not files:
        raise DataError("expected the names of the data files, got none", path=str(folder / STATE))
    indices = _file_paths(folder, state.get("_indices_data_files") or [])
    if not indices and (folder / INDICES).is_file():
        indices = [folder / INDICES]
    if len(indices) > 1:
        raise DataError(f"expected one file of indices, got {len(indices)}", path=str(folder / STATE))
    return Dataset(files, indices[0] if indices else None)


def _file_paths(folder: Path, rows: Any) -> list[Path]:
    names = [row.get("filename") if isinstance(row, dict) else None for row in rows] if isinstance(rows, list) else []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(f"expected the name of a file in the folder, got {name!r:.80}", path=str(folder / STATE))
    return [folder / name for name in names if isinstance(name, str)]


def _cached_dataset(folder: Path, split: str | None) -> Dataset:
    splits: dict[str, list[Path]] = {}
    declared = read_json(folder / INFO).get("splits")
    names = [name for name in declared if isinstance(name, str)] if isinstance(declared, dict) else []
    unmatched = []
    for path in sorted(folder.glob("*.arrow"), key=os.fsencode):
        if path.name.startswith(("cache-", "tmp", ".", "_")) or path.name == INDICES:
            continue
        stem = shard["split"] if (shard := _SHARD.fullmatch(path.stem)) else path.stem
        owner = max((name for name in names if stem.endswith(f"-{name}") or stem == name), key=len, default=None)
        if owner is None:
            unmatched.append(path)
        else:
            splits.setdefault(owner, []).append(path)
    if not splits and not unmatched:
        raise DataError("expected <name>-<split>.arrow files in the folder, got none", path=str(folder))
    if unmatched and splits:
        raise DataError(
            f"expected files of the splits {', '.join(names)}, got {unmatched[0].name}",
            path=str(folder),
            hint="pass the paths of the files that you want",
        )
    if not splits:
        splits = {"": unmatched}
        if split is not None:
            raise DataError(f"expected files of the split {split!r}, got {unmatched[0].name}", path=str(folder))
    name = _choose_split(list(splits), split, folder, lambda name: repr(_pattern(splits[name])))
    return Dataset(splits[name])


def parquet_files(folder: Path, split: str | None = None) -> list[Path]:
    """Return the Parquet files below a folder, or of one split of it, sorted by the bytes of their relative paths.

    Raises:
        DataError: there are several splits, there is none of that name, there is no file, or a log says which files
            are part of the data.
    """
    with looking(folder):
        folder = _snapshot(folder)
        files = [p.relative_to(folder) for p in folder.rglob("*.parquet") if p.is_file()]
        files = [p for p in files if not any(part.startswith((".", "_")) for part in p.parts)]
        refuse_tables(folder, files)
        if not files:
            raise DataError("expected *.parquet files in the folder, got none", path=str(folder))
        files.sort(key=os.fsencode)
        splits = _declared_splits(folder, files) or _splits_by_name(files)
    if len(splits) > 1 or split is not None:
        all_files = os.path.join(folder, "**", "*.parquet")
        name = _choose_split(
            list(splits),
            split,
            folder,
            lambda name: repr(_pattern([folder / p for p in splits[name]])),
            f"; all files, whatever their split: {all_files!r}",
        )
        files = splits[name]
    elif splits:
        (files,) = splits.values()
    return [folder / p for p in files]


def _snapshot(folder: Path) -> Path:
    """Return the folder with the files of a dataset. In the Hub's cache it is the revision that `main` names."""
    snapshots = folder / "snapshots"
    if not (folder.name.startswith("datasets--") and snapshots.is_dir()):
        return folder
    main = folder / "refs" / "main"
    if main.is_file():
        with open_file(main) as file:
            revision = file.read(200).decode("ascii", "replace").strip()
        if revision and Path(revision).name == revision and (snapshots / revision).is_dir():
            return snapshots / revision
    revisions = sorted(p for p in snapshots.iterdir() if p.is_dir())
    if len(revisions) != 1:
        listed = ", ".join(p.name for p in revisions) or "none"
        raise DataError(f"expected one revision in snapshots/, got {listed}", path=str(folder), hint="pass one's path")
    return revisions[0]


def _splits_by_name(files: list[Path]) -> dict[str, list[Path]]:
    """Return files by split if the name of each file contains one, else nothing."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        stem = path.with_suffix("").as_posix()
        if shard := _SHARD.fullmatch(path.stem):
            name = shard["split"]
        else:
            words = [word for word in re.split(r"[-._ /0-9]+", stem) if word in _WORDS]
            if not words:
                return {}
            name = _WORDS[words[-1]]
        # Other folders are configurations, such as languages.
        within = [part for part in path.parent.parts if part != "data" and _WORDS.get(part) != name]
        splits.setdefault("/".join([*within, name]), []).append(path)
    return splits


def _declared_splits(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Return files by split as ``README.md`` declares them, else nothing."""
    readme = folder / "README.md"
    if not readme.is_file():
        return {}
    splits: dict[str, list[Path]] = {}
    configs = _configs(readme)
    for config, split, patterns in configs:
        name = split if len({entry[0] for entry in configs}) == 1 else f"{config}/{split}"
        if any(Path(pattern).is_absolute() or ".." in Path(pattern).parts for pattern in patterns):
            raise DataError(f"expected patterns within the folder, got {', '.join(patterns):.200}", path=str(readme))
        declared = {Path(path) for pattern in patterns for path in glob.glob(pattern, root_dir=folder, recursive=True)}
        matching = [path for path in files if path in declared]
        if not matching:
            raise DataError(f"expected files at {', '.join(patterns)} (split {name!r}), got none", path=str(readme))
        splits.setdefault(name, []).extend(matching)
    return splits


_ENTRY = re.compile(r"(?P<indent> *)(?P<dash>- +)?(?:(?P<key>\w+):(?: +(?P<value>\S.*))?|(?P<item>[^:]+))\s*")


def _configs(readme: Path) -> list[tuple[str, str, list[str]]]:
    """Return (config, split, patterns) for each split that the ``configs`` of a README declare.

    Reads the block style that `datasets` writes, no other YAML.

    Raises:
        DataError: the ``configs`` have another style.
    """
    splits: list[tuple[str, str, list[str]]] = []
    config, key, inside = "default", "", False
    for number, line in enumerate(_front_matter(readme), 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith((" ", "-")):
            if inside:
                break
            inside = line.rstrip() == "configs:"
            if line.startswith("configs:") and not inside:
                raise _yaml_error(readme, number)
            continue
        if not inside:
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise _yaml_error(readme, number)
        value = _unquote(entry["value"] or entry["item"] or "")
        if entry["item"] is not None:
            if key not in ("path", "data_files") or not entry["dash"]:
                raise _yaml_error(readme, number)
            if key == "data_files" and (not splits or splits[-1][:2] != (config, "train")):
                splits.append((config, "train", []))
            splits[-1][2].append(value)
            continue
        key = entry["key"]
        if value[:1] in ("[", "{", "&", "*", "|", ">"):
            raise _yaml_error(readme, number)
        if key == "config_name":
            config = value
        elif key == "split":
            splits.append((config, value, []))
        elif key == "path" and value:
            if not splits:
                raise _yaml_error(readme, number)
            splits[-1][2].append(value)
        elif key == "data_files" and value:
            splits.append((config, "train", [value]))
    if any(not patterns for _, _, patterns in splits):
        raise DataError("expected a path for every split of `configs`, got none", path=str(readme))
    return splits


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _front_matter(readme: Path) -> list[str]:
    with open_file(readme) as file:
        text = file.read(1 << 20).decode("utf-8", "replace")
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        return []
    ends = [i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    return lines[1 : ends[0]] if ends else []


def _yaml_error(readme: Path, line: int) -> DataError:
    return DataError(
        "expected `configs` as `datasets` writes them, one entry a line, got other YAML",
        path=str(readme),
        line=line,
        hint="name the Parquet files by a pattern, or pass a list of them",
    )


def _choose_split(names: list[str], split: str | None, folder: Path, place: Any, advice: str = "") -> str:
    """Return ``split``, or the name of the only split."""
    listed = ", ".join(names)
    if split is not None:
        if split not in names:
            raise DataError(f"expected one of the splits {listed}, got {split!r}", path=str(folder))
        return split
    if len(names) == 1:
        return names[0]
    places = ", ".join(f"{name}: {place(name)}" for name in names)
    hint = f"open one by its path: {places}{advice}"
    raise DataError(f"expected one split, got {len(names)}: {listed}", path=str(folder), hint=hint)


def _pattern(files: Iterable[Path]) -> str:
    """Return the path of a single file, or a pattern for files that share a folder and the beginning of their names."""
    paths = [str(path) for path in files]
    if len(paths) == 1:
        return paths[0]
    # The names share letters, not entire folders.
    start = os.path.commonprefix(paths).rstrip("0123456789")  # noqa: RUF071
    end = os.path.commonprefix([path[::-1] for path in paths])[::-1].lstrip("0123456789")  # noqa: RUF071
    pattern = f"{start}*{end}"
    return pattern if set(glob.glob(pattern)) == set(paths) else "a list of its files"


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file that describes a dataset.

    Raises:
        DataError: it cannot be read, is too large, or holds no object.
    """
    with open_file(path) as file:
        size = status_of(file).st_size
        if size > _MAX_BYTES:
            raise DataError(f"expected at most {_MAX_BYTES} bytes that describe a dataset, got {size}", path=str(path))
        text = file.read()
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError(f"expected an object, got {type(document).__name__}")
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected JSON that describes a dataset: {error}", path=str(path)) from error
    return document
