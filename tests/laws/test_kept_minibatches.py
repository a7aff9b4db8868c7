"""The law of kept minibatches: what a program keeps of a minibatch stays as it is, whatever is delivered later.

Memory of minibatches is used again. Each example keeps some of them in some form, drops the others, and compares at the
end.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import queue
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native, images
from tests.effort import examples
from tests.forked import Forked

SEQUENCES, MINIBATCHES, LARGE = 200, 100, 4096


def encoded(number):
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    memory = io.BytesIO()
    pillow.new("RGB", (40, 30), (number % 256, number // 256, 99)).save(memory, "PNG")
    return memory.getvalue()


def dense(**options):
    rows = np.arange(SEQUENCES * LARGE, dtype=np.float32).reshape(SEQUENCES, LARGE)
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows), **options), 30


def ragged(**options):
    rows = [np.full((n % 40 + 1, LARGE // 16), n, np.int32) for n in range(SEQUENCES)]
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows), **options), 600


def small(**options):
    rows = np.arange(10 * SEQUENCES * 128, dtype=np.float32).reshape(-1, 128)
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows), **options), 4


def texts(**options):
    strings = [f"{n} ".encode() * (n % 900 + 1000) for n in range(SEQUENCES)]
    return fl.MinibatchSource(fl.ArrayDeserializer(x=strings), **options), 40


def packed(**options):
    tokens = [np.arange(n, n + n % 700 + 300, dtype=np.int32) for n in range(SEQUENCES)]
    return fl.MinibatchSource(fl.Packed(fl.ArrayDeserializer(tokens=tokens), row=4096), **options), 16 * 4096


def pictures(**options):
    corpus = fl.ArrayDeserializer(x=[encoded(n) for n in range(SEQUENCES)])
    decode = images.Decode("x", images.Resize((96, 96)))
    return fl.MinibatchSource(corpus, transforms=[decode], **options), 8


def lanes(**options):
    rows = [np.full((n % 40 + 20, LARGE // 4), n, np.float32) for n in range(SEQUENCES)]
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows), truncation_length=10, **options), 160


KINDS = [dense, ragged, small, texts, packed, pictures, lanes]


def arrays_of(value):
    """All arrays of a value."""
    return [array for array in vars_of(value) if isinstance(array, np.ndarray)]


def vars_of(value):
    names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    return [getattr(value, name, None) for name in (*names, *getattr(value, "__dict__", ()))]


def values_of(minibatch):
    arrays = [array for value in minibatch.values() for array in arrays_of(value)]
    assert sum(array.nbytes for array in arrays) >= sum(value.nbytes for value in minibatch.values()) > 0
    return arrays


def views_of(minibatch):
    return [array[len(array) // 3 :][::2] for array in values_of(minibatch)]


def tensors_of(minibatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return [torch.from_numpy(array)[1:] for array in values_of(minibatch)]


def exported(minibatch):
    pytest.importorskip("torch", reason="torch is not installed")
    return [value.torch() for value in minibatch.values()]


def padded(minibatch):
    return [value.padded() for value in minibatch.values() if not hasattr(value, "bounds")]


FORMS = {
    "values": values_of,
    "views of views": lambda minibatch: [view[1:] for view in views_of(minibatch)],
    "tensors": tensors_of,
    "exported": exported,
    "padded": padded,
    "pickled": lambda minibatch: pickle.loads(pickle.dumps(views_of(minibatch), protocol=5)),
    "copied": lambda minibatch: copy.copy(views_of(minibatch)),
    "buffers": lambda minibatch: [memoryview(np.ascontiguousarray(view)) for view in views_of(minibatch)],
}


def frozen(tree):
    """The content of what was kept, in memory of its own."""
    if isinstance(tree, (list, tuple)):
        return [frozen(part) for part in tree]
    if isinstance(tree, bytes):
        return tree
    return np.asarray(tree.numpy() if hasattr(tree, "numpy") else tree).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@given(
    kept=st.lists(st.tuples(st.integers(0, MINIBATCHES - 1), st.sampled_from(sorted(FORMS))), min_size=1, max_size=12),
    ahead=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=examples(5), deadline=None)
def test_what_is_kept_stays(kind, kept, ahead, seed):
    source, size = kind(seed=seed, **({} if ahead else {"read_ahead": 0}))
    forms = {}
    for step, form in kept:
        forms.setdefault(step, []).append(form)
    held = []
    with source:
        for step in range(MINIBATCHES):
            minibatch = source.next_minibatch(size)
            for form in forms.get(step, ()):
                content = FORMS[form](minibatch)
                held.append((step, form, content, frozen(content)))
    for step, form, content, before in held:
        assert frozen(content) == before, f"{form} of minibatch {step}"


@pytest.mark.parametrize("ahead", [False, True])
def test_each_minibatch_is_right_whatever_is_kept(ahead):
    """Compared with the data, not with itself at delivery: nothing is delivered in memory that is still written to."""
    source, size = dense(**({} if ahead else {"read_ahead": 0}))
    rows = np.arange(SEQUENCES * LARGE, dtype=np.float32).reshape(SEQUENCES, LARGE)
    kept = []
    with source:
        for step in range(MINIBATCHES):
            minibatch = source.next_minibatch(size)
            np.testing.assert_array_equal(minibatch["x"].rows, rows[minibatch.ids])
            if step % 7 == 0:
                kept.append((minibatch.ids, minibatch["x"].rows[3:, ::5]))
    for ids, view in kept:
        np.testing.assert_array_equal(view, rows[ids][3:, ::5])


def test_other_threads_may_keep_and_drop_minibatches():
    source, size = dense()
    handed, wrong = queue.Queue(5), []
    rows = np.arange(SEQUENCES * LARGE, dtype=np.float32).reshape(SEQUENCES, LARGE)

    def use():
        held = []
        while (pair := handed.get()) is not None:
            held.append(pair)
            if len(held) > 3:
                ids, array = held.pop(0)
                if not np.array_equal(array, rows[ids]):
                    wrong.append(ids)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    with source:
        for _ in range(MINIBATCHES):
            minibatch = source.next_minibatch(size)
            handed.put((minibatch.ids, minibatch["x"].rows))
            del minibatch
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_fork_keeps_what_both_have():
    source, size = dense()
    rows = np.arange(SEQUENCES * LARGE, dtype=np.float32).reshape(SEQUENCES, LARGE)
    with source:
        kept = source.next_minibatch(size)

        def child():
            good = True
            for _ in range(20):
                minibatch = source.next_minibatch(size)
                good &= np.array_equal(minibatch["x"].rows, rows[minibatch.ids])
                minibatch["x"].rows[...] = -1
            return good and np.array_equal(kept["x"].rows, rows[kept.ids])

        children = [Forked(child) for _ in range(2)]
        for _ in range(20):
            minibatch = source.next_minibatch(size)
            np.testing.assert_array_equal(minibatch["x"].rows, rows[minibatch.ids])
        assert [forked.status() for forked in children] == [0, 0]
        np.testing.assert_array_equal(kept["x"].rows, rows[kept.ids])


# The threads that read packed rows ahead may end later than a source that is dropped.
@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, "close") for kind in (dense, ragged, texts, packed, pictures, lanes)]
    + [(kind, "drop") for kind in (dense, ragged, texts, pictures, lanes)],
)
def test_memory_goes_back_when_a_source_ends(kind, way):
    gc.collect()
    _native.release_memory()
    before = _native.memory_usage()[0]
    source, size = kind()
    most = []
    for _ in range(30):
        source.next_minibatch(size)
        most.append(_native.memory_usage()[1])
    assert max(most) > 0  # memory was used again
    last = source.next_minibatch(size)
    if way == "close":
        source.close()
    else:
        del source
        gc.collect()
    assert _native.memory_usage()[1] == 0
    del last
    gc.collect()
    assert _native.memory_usage() == (before, 0)


def test_memory_goes_back_when_a_loader_s_iterator_ends():
    gc.collect()
    _native.release_memory()
    before = _native.memory_usage()
    loader = fl.DataLoader([np.full(LARGE, n, np.float32) for n in range(SEQUENCES)], batch_size=30, shuffle=True)
    for batch in loader:
        assert len(batch)
    del batch
    gc.collect()
    assert _native.memory_usage() == before


def test_what_waits_is_no_more_than_was_in_use():
    gc.collect()
    _native.release_memory()
    source, size = dense()
    with source:
        each = source.next_minibatch(size)["x"].rows.nbytes
        for _ in range(MINIBATCHES):
            source.next_minibatch(size)
            in_use, unused = _native.memory_usage()
            assert in_use + unused <= 6 * each  # two that are copied ahead, the one delivered, and the one before
