"""Everything that writes files, as programs that can be killed, starved and repeated.

Each writer knows its inputs, its possible files afterwards, and the files before: complete or absent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import feedline as fl
from tests.torture import data


@dataclass(frozen=True)
class Writer:
    """One of them.

    Attributes:
        name: for people.
        write: called with the folder of the corpora and the one to write to.
        check: returns the faults of the second folder. Empty: none. None: there is no output yet.
        refusals: exceptions, other than feedline's, that its documentation promises for a full disk.
        shared: several processes may write to one place at a time.
        repeated: it writes several times, so that only the first output may fit, or keeps unfinished work.
        alike: it writes the same bytes each time.
    """

    name: str
    write: Callable[[Path, Path], Any]
    check: Callable[[Path, Path], str | None]
    refusals: tuple[type[BaseException], ...] = ()
    shared: bool = True
    repeated: bool = False
    alike: bool = True


def _same(found: list[data.Item]) -> str:
    return data.check_sweeps(found, data.FEW)


# ---- stores ---------------------------------------------------------------------------------------------


def _convert(name: str, part_bytes: int = 2048, jobs: int = 1) -> Callable[[Path, Path], Any]:
    def write(corpora: Path, target: Path) -> None:
        corpus = data.FORMATS[name](corpora)
        fl.convert(corpus, target / "out.store", chunk_bytes=512, part_bytes=part_bytes, jobs=jobs, overwrite=True)

    return write


def _shuffle(corpora: Path, target: Path) -> None:
    fl.convert(
        data.open_ctf(corpora),
        target / "out.store",
        chunk_bytes=512,
        part_bytes=2048,
        overwrite=True,
        shuffle=7,
        memory=4096,
    )


def _check_shuffled(corpora: Path, target: Path) -> str | None:
    if not (target / "out.store").exists():
        return None
    store = fl.StoreDeserializer(target / "out.store", verify=True)
    found = data.in_order(fl.MinibatchSource(store, shuffle=False, max_sweeps=1))
    if sorted(digest for _, digest in found) != sorted(data.truth(i) for i in range(data.FEW)):
        return "other sequences than those of the corpus"
    return "" if [digest for _, digest in found] != [data.truth(i) for i in range(data.FEW)] else "not shuffled"


def _tokenize(corpora: Path, target: Path) -> None:
    texts = fl.JSONLinesDeserializer(corpora / "texts.jsonl", text=fl.Stream((), "str"))
    tokens = fl.Tokenized(
        texts, lambda texts: [list(map(int, text.split())) for text in map(_digits, texts)], dtype="int32"
    )
    fl.convert(tokens, target / "out.store", chunk_bytes=256, part_bytes=1024, jobs=2, overwrite=True)


def _digits(text: str) -> str:
    """Return a text of numbers, or an empty one for other texts, for which `Tokenized` asks, too."""
    return text if text.replace(" ", "").isascii() and text.replace(" ", "").isdigit() else ""


def _check_tokens(corpora: Path, target: Path) -> str | None:
    if not (target / "out.store").exists():
        return None
    store = fl.StoreDeserializer(target / "out.store", verify=True)
    with fl.MinibatchSource(store, shuffle=False, max_sweeps=1) as source:
        found = [one.tolist() for minibatch in source.minibatches(500) for one in minibatch["tokens"].sequences()]
    wanted = [list(map(int, data.text(i).split())) for i in range(data.FEW)]
    wrong = [i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b]
    return "" if found == wanted else f"{len(found)} of {len(wanted)} texts, of which other tokens have {wrong[:8]}"


def _check_store(corpora: Path, target: Path) -> str | None:
    if not (target / "out.store").exists():
        return None
    store = fl.StoreDeserializer(target / "out.store", verify=True)
    return _same(data.in_order(fl.MinibatchSource(store, shuffle=False, max_sweeps=1)))


# ---- text and indices -----------------------------------------------------------------------------------


def _write_ctf(corpora: Path, target: Path) -> None:
    fl.write_ctf(target / "out.ctf", **data.columns(data.FEW))


def _check_ctf(corpora: Path, target: Path) -> str | None:
    if not (target / "out.ctf").exists():
        return None
    corpus = fl.CTFDeserializer(target / "out.ctf", data.STREAMS, cache=False)
    return _same(data.in_order(fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1)))


def _index(corpora: Path, target: Path) -> None:
    data.open_ctf(corpora, cache=target).close()


def _check_index(corpora: Path, target: Path) -> str | None:
    if not list(target.glob("*.feedline-index")):
        return None
    return _same(data.in_order(fl.MinibatchSource(data.open_ctf(corpora, cache=target), shuffle=False, max_sweeps=1)))


def _join(corpora: Path, target: Path) -> None:
    data.open_join(corpora, cache=target).close()


def _check_join(corpora: Path, target: Path) -> str | None:
    if not target.exists() or not list(target.iterdir()):
        return None
    return _same(data.in_order(fl.MinibatchSource(data.open_join(corpora, cache=target), shuffle=False, max_sweeps=1)))


# ---- states ---------------------------------------------------------------------------------------------


def _states(corpora: Path, target: Path) -> None:
    """Two generations of states: afterwards there is the second, on the way the first or none."""
    store = fl.kvstore.create("local")
    store.init("w", torch.zeros(300))
    store.set_optimizer("adam", learning_rate=0.1)
    for generation in range(2):
        store.push("w", torch.full((300,), 1.0 + generation))
        store.save_optimizer_states(target / "out.states", dump_optimizer=True)


def _check_states(corpora: Path, target: Path) -> str | None:
    if not (target / "out.states").exists():
        return None
    store = fl.kvstore.create("local")
    store.init("w", torch.zeros(300))
    store.set_optimizer("adam", learning_rate=0.1)
    store.load_optimizer_states(target / "out.states")
    store.push("w", torch.ones(300))
    weight = torch.empty(300)
    store.pull("w", weight)
    return "" if len(weight.unique()) == 1 else "states of several generations"


def _checkpoint(corpora: Path, target: Path) -> None:
    from feedline.train.checkpoint import Checkpoints

    kept = Checkpoints(target / "kept", keep=2)
    for number in range(4):
        kept.save(number, {"w": torch.full((500,), float(number))}, {"number": number})


def _check_checkpoint(corpora: Path, target: Path) -> str | None:
    from feedline.train.checkpoint import Checkpoints

    kept = Checkpoints(target / "kept")
    if not kept.paths():
        return None
    found = kept.latest()
    if found is None:
        return "there are checkpoints, and none of them is whole"
    numbers = {found.state["number"], *found.tensors["w"].unique().tolist()}
    if len(numbers) > 1:
        return f"a checkpoint of several: {numbers}"
    return "" if kept.paths()[-1] == found.path else f"the newest, {kept.paths()[-1].name}, is not whole"


WRITERS = (
    Writer("convert from CTF", _convert("ctf", jobs=2), _check_store, (FileExistsError,), repeated=True),
    Writer("convert from Parquet", _convert("parquet", part_bytes=1 << 30), _check_store, (FileExistsError,)),
    Writer("convert from arrays", _convert("arrays"), _check_store, (FileExistsError,), repeated=True),
    Writer("convert a join", _convert("join", part_bytes=1 << 30, jobs=2), _check_store, (FileExistsError,)),
    Writer("convert a user's format", _convert("user"), _check_store, (FileExistsError,), repeated=True),
    Writer("convert, shuffled", _shuffle, _check_shuffled, (FileExistsError,), repeated=True),
    Writer("convert texts to tokens", _tokenize, _check_tokens, (FileExistsError,), repeated=True),
    Writer("write_ctf", _write_ctf, _check_ctf),
    Writer("index CTF", _index, _check_index, alike=False),
    Writer("resolve a join", _join, _check_join, alike=False),
    Writer("save optimizer states", _states, _check_states, (OSError,), repeated=True),
    Writer("save checkpoints", _checkpoint, _check_checkpoint, (OSError,), shared=False, repeated=True),
)


def names(folder: Path) -> set[str]:
    """Return the names in a folder, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} if folder.exists() else set()


def print_of(folder: Path) -> str:
    """A digest of all files in a folder."""
    h = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        h.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return h.hexdigest()
