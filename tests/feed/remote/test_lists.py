"""Files that list others, in a store: pictures of a map file, features of a script."""

from __future__ import annotations

import contextlib
import pickle
import zipfile

import numpy as np
import pytest

import feedline as fl
from tests.feed.remote.conftest import delivered
from tests.oracles.cntk_files import htk
from tests.servers.web import WebServer

COUNT = 40


def put(store, folder):
    for file in folder.rglob("*"):
        if file.is_file():
            store.put(f"b/{folder.name}/{file.relative_to(folder)}", file.read_bytes())


NAMES = (
    "pics/x/{}.jpg",
    ".../pics/x/{}.jpg",
    ".../zips/a.zip@/{}.jpg",
    "./pics//x/../x/{}.jpg",
    "./zips/a.zip@/{}.jpg",
    ".../../a/pics/x/{}.jpg",
)


def write_map(folder):
    """Names in all forms, members of an archive, missing pictures, one whose name is no text, and an empty file."""
    (folder / "pics" / "x").mkdir(parents=True)
    lines = []
    for i in range(COUNT):
        (folder / "pics" / "x" / f"{i}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes([i]) * (i * 20))
        lines.append(NAMES[i % len(NAMES)])
    (folder / "zips").mkdir()
    with zipfile.ZipFile(folder / "zips" / "a.zip", "w") as archive:
        for i in range(COUNT):
            archive.writestr(f"{i}.jpg", b"\xff\xd8\xff\xe0" + bytes([i]) * 30)
    lines = [f"{line.format(i)}\t{i % 4}" for i, line in enumerate(lines)]
    odd = ["pics/missing.jpg\t1", "pics/a@2x.jpg\t1", "no line", ""]
    (folder / "map.txt").write_bytes("\n".join([*lines, *odd]).encode() + b"pics/\xff.jpg\t2\n")
    return "map.txt"


def write_script(folder):
    (folder / "feat").mkdir(parents=True)
    lines = []
    for i in range(COUNT):
        (folder / "feat" / f"{i}.mfc").write_bytes(htk(np.full((2 + i % 3, 5), i, np.float32)))
        lines.append(f"u{i}.mfc={('', '.../', './')[i % 3]}feat/{i}.mfc[0,{1 + i % 3}]")
    (folder / "list.scp").write_text("\n".join(lines))
    return "list.scp"


@pytest.mark.parametrize("write", [write_map, write_script])
@pytest.mark.parametrize("shuffle", [True, False])
def test_listed_files_are_next_to_the_list(store, opened, tmp_path, monkeypatch, write, shuffle):
    (tmp_path / "a").mkdir()
    name = write(tmp_path / "a")
    put(store, tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    how = {"shuffle": shuffle, "on_error": fl.Quarantine()}
    with contextlib.closing(fl.open_corpus(tmp_path / "a" / name)) as here:
        expected, digest = delivered(here, **how), here.digest()
    monkeypatch.chdir(tmp_path)
    store.reset()
    there = opened(f"a/{name}")
    assert store.counters().requests["LIST"] == 1  # for the files that the list names
    assert there.digest() == digest
    again = pickle.loads(pickle.dumps(there))
    assert delivered(there, **how) == expected
    assert store.counters().requests["LIST"] == 1
    assert delivered(again, **how) == expected


def test_other_objects_of_the_folder_are_not_read(store, opened, tmp_path):
    (tmp_path / "a").mkdir()
    write_script(tmp_path / "a")
    put(store, tmp_path / "a")
    store.put("b/a/feat/other.mfc", b"no features")
    there = opened("a/list.scp")
    assert len(there.placeholders.objects) == COUNT + 1


@pytest.mark.parametrize("write", [write_map, write_script])
def test_a_list_over_http(store, tmp_path, monkeypatch, write):
    """A web server lists nothing: each name is looked up."""
    (tmp_path / "a").mkdir()
    name = write(tmp_path / "a")
    put(store, tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    how = {"shuffle": False, "on_error": fl.Quarantine()}
    with contextlib.closing(fl.open_corpus(tmp_path / "a" / name)) as here:
        expected = delivered(here, **how)
    with contextlib.closing(
        fl.open_corpus(store.http(f"b/a/{name}"), remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5))
    ) as there:
        assert delivered(there, **how) == expected


def test_listed_objects_without_versions_are_fetched_again_by_later_runs(tmp_path):
    (tmp_path / "a").mkdir()
    name = write_script(tmp_path / "a")
    with WebServer({}) as web:
        for version in (1, 2):
            for file in (tmp_path / "a").rglob("*"):
                if file.suffix == ".mfc":
                    web.objects[f"/a/feat/{file.name}"] = htk(np.full((4, 5), version, np.float32))
            web.objects[f"/a/{name}"] = (tmp_path / "a" / name).read_bytes()
            web.etag, web.modified = False, None
            with contextlib.closing(
                fl.open_corpus(f"{web.url}/a/{name}", remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5))
            ) as there:
                values = [np.unique(rows) for _, one in delivered(there) for rows in next(iter(one.values()))]
            assert np.unique(np.concatenate(values)).tolist() == [version]
