"""Errors about data and states of the wrong kind name the right call, which works."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": index**2}


def corpus():
    return fl.ArrayDeserializer(x=np.arange(10))


TAKERS = {
    "DataLoader": lambda thing, path: fl.DataLoader(thing),
    "MinibatchSource": lambda thing, path: fl.MinibatchSource(thing),
    "convert": lambda thing, path: fl.convert(thing, path),
}


@pytest.mark.parametrize(
    ("taker", "thing", "says"),
    [
        ("DataLoader", lambda: fl.MinibatchSource(corpus()), r"DataLoader\(source.corpus, batch_size\)"),
        ("MinibatchSource", lambda: fl.MinibatchSource(corpus()), "it is a MinibatchSource already"),
        ("convert", lambda: fl.MinibatchSource(corpus()), r"fl.convert\(source.corpus, path\)"),
        ("MinibatchSource", Squares, r"got .*Squares: convert it once, fl.convert\(dataset, path\)"),
        ("MinibatchSource", lambda: [1, 2, 3], r"got list: convert it once, fl.convert\(dataset, path\)"),
        ("MinibatchSource", lambda: fl.DataLoader(Squares()), r"fl.convert\(loader.dataset, path\)"),
        ("MinibatchSource", lambda: torch.utils.data.DataLoader(Squares()), r"fl.convert\(loader.dataset, path\)"),
        ("convert", lambda: torch.utils.data.DataLoader(Squares()), r"fl.convert\(loader.dataset, path\)"),
        ("MinibatchSource", lambda: np.zeros(3), r"got numpy.ndarray: fl.ArrayDeserializer"),
        ("MinibatchSource", lambda: {"x": np.zeros(3)}, r"got dict: fl.ArrayDeserializer"),
        ("MinibatchSource", lambda: torch.zeros(3), r"got torch.Tensor: fl.ArrayDeserializer"),
        ("MinibatchSource", list, "got list: there is nothing to read"),
        ("MinibatchSource", lambda: ["a.ctf", "b.ctf"], r"got list: fl.open_corpus\(paths\) opens them as one"),
        ("MinibatchSource", lambda: [corpus(), 5], "Deserializers to join, got int"),
        ("MinibatchSource", lambda: Squares, r"it is a class; make an object of it: Squares\(...\)"),
        ("DataLoader", lambda: Squares, r"it is a class; make an object of it: Squares\(...\)"),
        ("convert", lambda: Squares, r"it is a class; make an object of it: Squares\(...\)"),
        ("convert", lambda: {"x": [1, 2], "y": [3, 4]}, "its columns must be arrays"),
        (
            "convert",
            lambda: type("Endless", (), {"__getitem__": lambda self, i: i})(),
            "a dataset with a length, got Endl",
        ),
        ("MinibatchSource", lambda: 5, "got int: see docs/formats"),
        ("MinibatchSource", lambda: "a.ctf", r"fl.open_corpus\('a.ctf'\) opens a path"),
    ],
)
def test_what_was_meant(tmp_path, taker, thing, says):
    with pytest.raises(TypeError, match=f"(?s)^expected .*{says}"):
        TAKERS[taker](thing(), tmp_path / "a")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_a_frame_names_the_replacement(tmp_path, taker, library):
    module = pytest.importorskip(library)
    columns = {"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]}
    frame = module.DataFrame(columns) if library == "pandas" else module.table(columns)
    with pytest.raises(TypeError, match=f"got {library}.*its columns as arrays: ") as caught:
        TAKERS[taker](frame, tmp_path / "a")
    written = str(caught.value).partition("as arrays: ")[2]
    names = {"frame": frame, "fl": fl, "path": tmp_path / "a"}
    made = eval(written, {**names, "DataLoader": fl.DataLoader, "MinibatchSource": fl.MinibatchSource})
    if taker == "DataLoader":
        assert [batch["y"].item() for batch in made] == columns["y"]
    elif taker == "MinibatchSource":
        assert sorted(made.next_minibatch(3)["y"].rows.tolist()) == columns["y"]
    else:
        assert made.sequences == 3


def test_a_series_is_refused_too():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"got pandas.Series: pass its array"):
        fl.DataLoader(pandas.Series([1, 2]))


def test_what_is_no_mistake():
    """Subclasses of lists and dictionaries, and datasets that hold frames, stay datasets."""
    assert len(fl.DataLoader(Squares())) == 10
    assert len(list(fl.DataLoader(fl.DataLoader(Squares(), batch_size=5), batch_size=None))) == 2


@pytest.mark.parametrize(
    ("generator", "says"),
    [
        (42, r"got 42; for a seed write seed=42"),
        (np.int64(7), "for a seed write seed=7"),
        (np.random.default_rng(0), "pass seed="),
        ("cuda", "got 'cuda'; pass seed="),
    ],
)
def test_a_generator_is_torchs(generator, says):
    with pytest.raises(TypeError, match=f"expected generator as a torch.Generator, .*{says}"):
        fl.DataLoader(Squares(), shuffle=True, generator=generator)
    loader = fl.DataLoader(Squares())
    with pytest.raises(TypeError, match=says):
        loader.generator = generator
    loader.generator = torch.Generator()


# ---- states ---------------------------------------------------------------------------------------------


def test_states_of_sources_and_loaders_are_not_mixed_up():
    loader, source = fl.DataLoader(corpus(), seed=0, shuffle=True), fl.MinibatchSource(corpus())
    with pytest.raises(fl.StateError, match="of a feedline DataLoader, got one of a MinibatchSource"):
        loader.load_state_dict(source.state_dict())
    with pytest.raises(fl.StateError, match="of a feedline MinibatchSource, got one of a DataLoader"):
        source.load_state_dict(loader.state_dict())


def test_a_checkpoint_around_a_state_names_the_entry():
    loader = fl.DataLoader(Squares())
    with pytest.raises(fl.StateError, match=r"\['loader'\] looks like one"):
        loader.load_state_dict({"model": {}, "loader": loader.state_dict()})


# In a separate process, as torchdata changes torch's samplers when it is imported.
TORCHDATA = """
    import warnings
    warnings.simplefilter("ignore")
    import feedline as fl
    import numpy as np
    from torchdata.stateful_dataloader import StatefulDataLoader

    if __name__ == "__main__":
        for workers in (0, 2):
            theirs = StatefulDataLoader(list(range(20)), batch_size=4, shuffle=True, num_workers=workers)
            before = theirs.state_dict()
            iterator = iter(theirs)
            next(iterator), next(iterator)
            ours = fl.DataLoader(list(range(20)), batch_size=4, shuffle=True)
            source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(20)))
            for feed in (ours, source):
                for state in (theirs.state_dict(), before):
                    try:
                        feed.load_state_dict(state)
                    except fl.StateError as error:
                        print(error.what)
            del iterator
"""


@pytest.mark.frameworks("torchdata")
def test_a_state_of_torchdatas_is_called_that(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(TORCHDATA))
    told = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, check=True).stdout
    lines = told.splitlines()
    assert len(lines) == 8
    for line in lines:
        assert "got one of torchdata's StatefulDataLoader" in line
    assert sum("after 2 batches" in line for line in lines) == 4
