"""Folds by key: equal keys together, unchanged by appended data, and equal shares of strata."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import feedline as fl

USERS = [f"user {i % 700}" for i in range(3000)]


def test_a_fold_is_a_hash_of_the_key():
    digests = [hashlib.blake2b(user.encode(), digest_size=8, salt=(3).to_bytes(8, "little")) for user in USERS]
    expected = [int.from_bytes(digest.digest(), "little") % 5 for digest in digests]
    found = fl.folds(USERS, 5, seed=3)
    assert (found.dtype, found.tolist()) == (np.int64, expected)


def test_folds_are_about_equally_large():
    sizes = np.bincount(fl.folds(range(10_000), 4))
    assert len(sizes) == 4
    assert (abs(sizes - 2500) < 200).all()


def test_equal_keys_are_in_one_fold():
    fold = fl.folds(USERS, 5)
    assert fold.tolist() == [*fold[:700]] * 4 + [*fold[:200]]


def test_integers_and_their_digits_are_the_same_keys():
    numbers = np.arange(-50, 50, dtype=np.int32)
    expected = fl.folds([str(n) for n in numbers.tolist()], 7).tolist()
    for same in (numbers, numbers.astype(np.int64), list(numbers), range(-50, 50), numbers.astype("S")):
        assert fl.folds(same, 7).tolist() == expected


def test_keys_in_a_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert fl.folds(torch.arange(100), 7).tolist() == fl.folds(range(100), 7).tolist()


def test_other_seeds_give_other_folds():
    assert (fl.folds(USERS, 5, seed=1) != fl.folds(USERS, 5, seed=2)).mean() > 0.7


@pytest.mark.parametrize("strata", [None, np.arange(3000) % 700 % 3])
def test_appended_data_changes_no_fold(strata):
    whole = fl.folds(USERS, 5, strata=strata)
    for stop in (1, 699, 700, 701, 2500):
        part = fl.folds(USERS[:stop], 5, strata=None if strata is None else strata[:stop])
        assert part.tolist() == whole[:stop].tolist()


def test_any_part_has_the_folds_of_the_whole():
    whole = fl.folds(USERS, 5)
    assert fl.folds(USERS[::-7], 5).tolist() == whole[::-7].tolist()


def test_folds_have_equal_shares_of_strata():
    classes = np.repeat(["common", "rare", "single"], [900, 47, 1])
    fold = fl.folds(range(948), 5, strata=classes)
    shares = {name: np.bincount(fold[classes == name], minlength=5) for name in ("common", "rare", "single")}
    assert shares["common"].tolist() == [180] * 5
    assert sorted(shares["rare"]) == [9, 9, 9, 10, 10]
    assert sorted(shares["single"]) == [0, 0, 0, 0, 1]


def test_strata_count_keys_and_keep_them_together():
    users = np.arange(1000) % 100
    classes = users % 10
    fold = fl.folds(users, 5, strata=classes)
    assert fold.tolist() == fold[:100].tolist() * 10
    for name in range(10):
        assert np.bincount(fold[:100][classes[:100] == name]).tolist() == [2] * 5


def test_strata_are_dealt_in_no_fixed_turns():
    fold = fl.folds(range(1000), 5, strata=[0] * 1000)
    turns = {tuple(turn) for turn in fold.reshape(200, 5).tolist()}
    assert all(sorted(turn) == [0, 1, 2, 3, 4] for turn in turns)
    assert len(turns) > 60


def test_parts_of_a_corpus_by_fold():
    """Also from a function of a stream, which is called with a part of the corpus at a time."""
    corpus = fl.ArrayDeserializer(user=np.array(USERS, object), x=np.arange(3000))
    fold = fl.folds(USERS, 5)
    parts = [fl.Filtered(corpus, {"user": lambda users, k=k: fl.folds(users, 5) == k}) for k in range(5)]
    for k, part in enumerate(parts):
        minibatch = fl.MinibatchSource(part, shuffle=False, max_sweeps=1).next_minibatch(3000)
        assert minibatch["x"].rows.tolist() == np.flatnonzero(fold == k).tolist()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((["a", 0.5], 3), {}, TypeError, r"got float \(0.5\): make a text of each"),
        (([True], 3), {}, TypeError, "got bool"),
        (([None], 3), {}, TypeError, "got NoneType"),
        ((np.zeros((3, 1), int), 3), {}, TypeError, "got list"),
        (("abc", 3), {}, TypeError, "expected a list or array of keys for folds, got one str"),
        ((["a"], 1), {}, ValueError, "expected count of at least 2"),
        ((["a"], 3), {"seed": -1}, ValueError, "expected 0 <= seed"),
        ((["a", "b"], 3), {"strata": [1]}, ValueError, "got 1 for 2 keys"),
        ((["a"], 3), {"strata": [1.5]}, TypeError, "expected strata"),
        ((["a", "b", "a"], 3), {"strata": [1, 1, 2]}, ValueError, "got key b'a' in b'1' and b'2': give a key one"),
    ],
)
def test_what_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        fl.folds(*arguments, **options)
