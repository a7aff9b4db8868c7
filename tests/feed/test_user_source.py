"""User sources: the classifier's data of CNTK's manual by several workers, resuming, states that are JSON."""

import json

import numpy as np
import pytest

import feedline as fl
from feedline.testing import assert_resumes, sequences_of

# (vocabulary indices, class): the four sequences of the manual's example.
SEQUENCES = [
    ([560, 0, 0], 0),
    ([560, 0, 0, 424], 1),
    ([160, 5, 6], 2),
    ([460, 3, 3, 425], 3),
]


class Classified(fl.UserMinibatchSource):
    """All workers follow one order and take turns. The index advances for each sequence, whichever takes it."""

    schema = fl.Schema({"features": fl.Stream(1000, sparse=True), "labels": fl.Stream(5)})

    def __init__(self, sweeps=3):
        self.next, self.sweeps = 0, sweeps

    def make_minibatch(self, num_samples, number_of_workers, worker_rank, device):
        first, samples = self.next, 0
        while self.next < self.sweeps * len(SEQUENCES):
            length = len(SEQUENCES[self.next % len(SEQUENCES)][0])
            if samples and samples + length > num_samples:
                break
            samples += length
            self.next += 1
        if samples == 0:
            return None
        mine = [i for i in range(first, self.next) if i % number_of_workers == worker_rank]
        rows = [SEQUENCES[i % len(SEQUENCES)] for i in mine]
        features = fl.Value.one_hot([words for words, _ in rows], 1000) if rows else []
        ends = any(i % len(SEQUENCES) == len(SEQUENCES) - 1 for i in range(first, self.next))
        streams = {"features": features, "labels": [np.eye(5)[label : label + 1] for _, label in rows]}
        return fl.UserMinibatch(streams, ends, samples, self.next - first, ids=mine)

    def get_checkpoint_state(self):
        return {"next": self.next}

    def restore_from_checkpoint(self, state):
        self.next = state["next"]


def words(minibatches):
    return [
        (i, m["features"].class_indices().sequences()[k].tolist(), int(m["labels"].rows[k].argmax()))
        for m in minibatches
        for k, i in enumerate(m.ids.tolist())
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_workers_parts_are_the_data_and_all_end_together(workers, size):
    sources = [Classified() for _ in range(workers)]
    steps = [list(s.minibatches(size, partition=(rank, workers))) for rank, s in enumerate(sources)]
    assert len({len(parts) for parts in steps}) == 1
    union = sorted(row for parts in steps for row in words(parts))
    assert union == [(i, *SEQUENCES[i % 4]) for i in range(12)]
    for parts in zip(*steps, strict=True):
        samples = sum(m.num_samples for m in parts)
        assert {m.global_samples for m in parts} == {samples}
        assert samples <= size or sum(m.num_sequences for m in parts) == 1
        assert len({(m.sweep_end, m.position) for m in parts}) == 1
    assert {s.position.samples for s in sources} == {3 * 14}
    assert not sources[0].next_minibatch(size)
    assert not sources[0].next_minibatch(size)


def test_the_partition_comes_from_the_call_the_source_or_one_process():
    source = Classified()
    assert source.next_minibatch(7).ids.tolist() == [0, 1]
    assert source.next_minibatch(7, partition=(1, 2)).ids.tolist() == [3]
    source = Classified()
    source.partition = (0, 2)
    assert [m.ids.tolist() for m in source.minibatches(7, until=fl.sweeps(1))] == [[0], [2]]
    with pytest.raises(ValueError, match="0 <= index < count"):
        source.next_minibatch(7, partition=(2, 2))


def test_resumes():
    assert_resumes(Classified, sizes=(1, 3, 7, 20), minibatches=5)


def test_resumes_under_another_number_of_workers():
    first = [Classified() for _ in range(3)]
    begun = [list(zip(range(2), s.minibatches(7, partition=(r, 3)), strict=False)) for r, s in enumerate(first)]
    states = [json.loads(json.dumps(s.state_dict())) for s in first]
    assert states[0] == states[1] == states[2]
    then = [Classified() for _ in range(2)]
    for source in then:
        source.load_state_dict(states[0])
    rest = [list(s.minibatches(5, partition=(r, 2))) for r, s in enumerate(then)]
    rows = words(m for parts in begun for _, m in parts) + words(m for parts in rest for m in parts)
    assert sorted(i for i, _, _ in rows) == list(range(12))


def test_it_is_a_feed_with_a_clock():
    source = Classified(sweeps=2)
    assert isinstance(source, fl.Feed)
    assert source.position == fl.Position(0, 0, 0, 0)
    source.next_minibatch(7)
    source.count_label_samples(2)
    assert source.position == fl.Position(0, 2, 7, 2)
    with source:
        assert [m.sweep_end for m in source] == [True]
    assert source.position == fl.Position(1, 0, 28, 2)
    state = source.state_dict()
    again = Classified(sweeps=2)
    again.load_state_dict(state)
    assert (again.position, bool(again.next_minibatch(3))) == (source.position, False)
    again.load_state_dict(Classified().state_dict())  # the end is not final
    assert again.next_minibatch(3)


# ---- plain sources ------------------------------------------------------------------------------------


class Plain(fl.UserMinibatchSource):
    """Ten rows, without workers and checkpoints."""

    def __init__(self, given=None):
        self.given = given
        self.calls = 0

    def streams(self):
        return {"x": fl.Stream(2)}

    def make_minibatch(self, num_samples, number_of_workers, worker_rank, device):
        self.calls += 1
        self.arguments = num_samples, number_of_workers, worker_rank, device
        if isinstance(self.given, Exception):
            raise self.given
        if self.given is not None:
            return self.given
        return {"x": np.full((num_samples, 2), self.calls)} if self.calls <= 3 else {}


def test_a_simple_source_needs_one_method():
    source = Plain()
    source.device = "cuda:1"
    minibatches = list(source.minibatches(4))
    assert [m["x"].rows[0, 0] for m in minibatches] == [1, 2, 3]
    assert source.arguments == (4, 1, 0, "cuda:1")
    assert [m.ids.tolist() for m in minibatches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [m.position.samples for m in minibatches] == [0, 4, 8]
    assert source.calls == 4
    assert not source.next_minibatch(1)
    assert source.calls == 4  # not asked again after the end
    state = source.state_dict()
    assert state["samples"] == 12
    with pytest.raises(fl.StateError, match="Plain cannot be resumed: define get_checkpoint_state and restore"):
        Plain().load_state_dict(state)


def test_data_unlike_the_schema_leaves_the_position():
    for given, message in [
        ({"y": [1]}, "expected the streams x from make_minibatch of Plain, got y"),
        ({"x": np.zeros((2, 3))}, r"samples of shape \(2,\) for stream `x`"),
        (fl.UserMinibatch({"x": np.zeros((2, 2))}, ids=[1]), "one id for each of 2 sequences"),
    ]:
        source = Plain(given)
        with pytest.raises(fl.SchemaError, match=message):
            source.next_minibatch(2)
        assert source.position == fl.Position()
    source = Plain(OSError("no more socket"))
    with pytest.raises(OSError, match="no more socket"):
        source.next_minibatch(2)
    assert source.position == fl.Position()
    with pytest.raises(ValueError, match="minibatch size of at least 1"):
        source.next_minibatch(0)


def test_an_empty_part_is_no_end():
    source = Plain({"x": np.empty((0, 2))})
    minibatch = source.next_minibatch(3)
    assert minibatch
    assert (minibatch.num_samples, minibatch.num_sequences) == (0, 0)


# ---- states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"next": np.int64(3)}, r"in Classified.get_checkpoint_state\(\)\['next'\], got int64 .*\.item\(\)"),
        ({"a": [1, {"b": np.zeros(2)}]}, r"\['a'\]\[1\]\['b'\], got ndarray"),
        ({"place": (1, 2)}, "got tuple .*make it a list"),
        ({3: 1}, "expected strings as keys of .*, got 3"),
        ({"loss": float("nan")}, "finite float"),
        ({"rng": {1, 2}}, "got set"),
    ],
)
def test_a_state_that_json_would_change_is_refused(state, message):
    kind = type("Classified", (Classified,), {"get_checkpoint_state": lambda self: state})
    with pytest.raises(fl.StateError, match=message):
        kind().state_dict()


def test_a_state_is_a_copy():
    place = {"stack": [1]}
    source = type("S", (Classified,), {"get_checkpoint_state": lambda self: place})()
    state = source.state_dict()
    place["stack"].append(2)
    assert state["state"] == {"stack": [1]}


def test_states_that_do_not_fit_leave_the_source_where_it_was():
    source = Classified()
    source.next_minibatch(7)
    before, good = source.position, Classified().state_dict()
    corpus_state = {"feedline": 1, "order": "feedline-1", "schema": good["schema"]}
    for state, message in [
        ({}, "expected a state of a feedline source"),
        (corpus_state, "another kind of source"),
        ({**good, "schema": "0"}, "other streams"),
        ({**good, "samples": -1}, "damaged"),
        ({**good, "sequences": "3"}, "damaged"),
        ({**good, "state": {"other": 1}}, "restore_from_checkpoint of Classified raised KeyError: 'next'"),
    ]:
        with pytest.raises(fl.StateError, match=message):
            source.load_state_dict(state)
        assert source.position == before
    assert sequences_of([source.next_minibatch(7)]) == sequences_of(list(Classified().minibatches(7))[1:2])
