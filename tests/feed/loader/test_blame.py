"""Errors name the item they are about: its index in the dataset, the part that differs, and both shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.loader.blame import difference

torch = pytest.importorskip("torch")

workers = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 1, "batch_size": 1}],
    ids=["here", "processes", "threads", "one"],
)


class Items(torch.utils.data.Dataset):
    """Items made by a function of the index."""

    def __init__(self, make, n=40):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.make(index)


class Together(Items):
    def __getitems__(self, indices):
        return [self.make(index) for index in indices]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, make, n=40):
        self.make, self.n = make, n

    def __iter__(self):
        return map(self.make, range(self.n))


def failing(index):
    if index == 23:
        raise ValueError("bad file")
    return index


def text_of(error):
    """Return the text of an error: its message and its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@workers
def test_an_error_in_an_item_names_its_index(options):
    loader = fl.DataLoader(Items(failing), **{"batch_size": 8, "shuffle": True, "seed": 5, **options})
    with pytest.raises(ValueError, match="bad file") as caught:
        list(loader)
    assert "raised while reading item 23 of Items" in text_of(caught.value)
    if options.get("num_workers") and options.get("workers") != "thread":
        assert str(caught.value).startswith("Caught ValueError in DataLoader worker process ")


def test_an_error_without_batching_names_the_index():
    with pytest.raises(ValueError, match="bad file") as caught:
        list(fl.DataLoader(Items(failing), batch_size=None))
    assert "item 23 of Items" in text_of(caught.value)


def test_an_error_of_getitems_names_the_batch():
    with pytest.raises(ValueError, match="bad file") as caught:
        list(fl.DataLoader(Together(failing), batch_size=4))
    assert "raised while reading items 20, 21, 22, 23 of Together together" in text_of(caught.value)


@pytest.mark.parametrize("count", [0, 1])
def test_an_error_in_an_iterator_has_the_number_of_samples_before(count):
    with pytest.raises(ValueError, match="bad file") as caught:
        list(fl.DataLoader(Stream(failing), batch_size=4, num_workers=count))
    assert "raised by the iterator of Stream after 23 samples" in text_of(caught.value)


def uneven(index):
    return {"image": (torch.zeros(3, 4 + (index == 23)), index), "box": [index]}


@workers
def test_samples_that_differ_are_named(options):
    """torch's own text comes first, then our additions."""
    loader = fl.DataLoader(Items(uneven), **{**options, "batch_size": 8})
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        list(loader)
    expected = (
        "sample['image'][0] is Tensor float32 (3, 4) in item 16, but Tensor float32 (3, 5) in item 23: make them equal "
        "in the dataset, or pass a collate_fn; for sequences of varying length, "
        "batch_sampler=fl.BatchByLength("
    )
    assert expected in text_of(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda i: np.zeros((2, 2 + (i == 3))), r"sample is ndarray float64 (2, 2) in item 0, but"),
        (
            lambda i: (1, [1] * (1 + (i == 3))),
            "sample[1] is a list of length 1 in item 0, but a list of length 2 in item 3",
        ),
        (lambda i: (1,) * (2 + (i == 3)), "sample is a tuple of length 2 in item 0, but a tuple of length 3 in item 3"),
        (lambda i: {"a": 1, **({} if i == 3 else {"b": 2})}, "a dict with 'a', 'b' in item 0, but a dict with 'a'"),
        (lambda i: {"a": None if i == 3 else 1}, "sample['a'] is int in item 0, but NoneType in item 3"),
        (lambda i: {"a": object()}, "raised while collating item 0, item 1, item 2, item 3"),
    ],
)
def test_every_difference_is_named(make, says):
    with pytest.raises((RuntimeError, TypeError, KeyError)) as caught:
        list(fl.DataLoader(Items(make), batch_size=4))
    assert says in text_of(caught.value)


def test_sequences_may_differ_in_length_but_not_in_their_samples():
    loader = fl.DataLoader(
        Items(lambda i: {"x": np.zeros((1 + i % 3, 4 + (i == 5)))}),
        batch_sampler=fl.BatchByLength(20, [1 + i % 3 for i in range(40)]),
    )
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert "sample['x'] is ndarray float64 (any, 4) in item 0, but ndarray float64 (any, 5) in item 5" in text_of(
        caught.value
    )


def test_an_own_collate_fn_is_named_with_its_items():
    def collate(samples):
        raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot") as caught:
        list(fl.DataLoader(Items(int, 100), batch_size=10, collate_fn=collate))
    assert "raised by collate_fn for item 0, item 1, item 2, item 3, item 4, item 5, item 6, item 7 and 2 more" in (
        text_of(caught.value)
    )


def test_samples_read_as_one_array_keep_the_error_of_the_collate_fn():
    class Gathering(Items):
        def __getitems__(self, indices):
            return np.asarray(indices)

    def collate(samples):
        raise KeyError("cannot")

    with pytest.raises(KeyError, match="cannot") as caught:
        list(fl.DataLoader(Gathering(int), batch_size=3, collate_fn=collate))
    assert "raised by collate_fn for item 0, item 1, item 2" in text_of(caught.value)


class Shapeless:
    """Raises when asked for its shape, as some tensors of torch do."""

    @property
    def shape(self):
        raise RuntimeError("no shape")


def test_samples_that_cannot_be_compared_keep_the_error_of_collating_them():
    with pytest.raises(TypeError, match="Shapeless") as caught:
        list(fl.DataLoader(Items(lambda i: Shapeless()), batch_size=2))
    assert "raised while collating item 0, item 1" in text_of(caught.value)


def test_an_iterable_dataset_is_counted():
    with pytest.raises(RuntimeError) as caught:
        list(fl.DataLoader(Stream(uneven), batch_size=8))
    assert "in sample 16 of this iterator, but Tensor float32 (3, 5) in sample 23 of this iterator" in text_of(
        caught.value
    )


trees = st.recursive(
    st.builds(lambda shape: np.zeros(shape), st.lists(st.integers(0, 3), max_size=3)) | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(trees, st.integers(1, 4), st.data())
def test_equal_samples_do_not_differ_and_others_do(tree, count, data):
    """The law of `difference`: the part that it names exists in both samples."""
    assert difference([tree] * count) is None
    other = data.draw(trees)
    found = difference([tree] * count + [other])
    if found is None:
        assert outline(tree) == outline(other)
        return
    for place, told in ((0, found.expected), (found.place, found.got)):
        part = eval(f"sample{found.path}", {"sample": ([tree] * count + [other])[place]})
        assert type(part).__name__ in told
    assert found.expected != found.got


def outline(tree):
    if isinstance(tree, dict):
        return {key: outline(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [outline(value) for value in tree]
    return type(tree), getattr(tree, "shape", None)
