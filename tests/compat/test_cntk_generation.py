"""`UnfoldFrom` against decoding by hand, one step after the other, and `AttentionModel` against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk.layers import (  # noqa: E402
    GRU,
    LSTM,
    AttentionModel,
    Dense,
    Embedding,
    Fold,
    Recurrence,
    RecurrenceFrom,
    SequenceOver,
    Signature,
    Stabilizer,
    Tensor,
    UnfoldFrom,
)
from tests.oracles import network as oracle  # noqa: E402

CLASSES, START, END = 5, 0, 1
eye = np.eye(CLASSES, dtype=np.float32)
Input, Output = SequenceOver[C.Axis("in")], SequenceOver[C.Axis("out")]


def decoder(attention, seed=0):
    """Return ``(history, input) -> scores``: recurrences over generated steps, with attention to the input."""
    embed, emit = Embedding(4), Dense(CLASSES, init=C.normal(3, seed=seed + 1))
    encode = Recurrence(LSTM(6)) if attention else Fold(LSTM(6), return_full_state=True)
    first, second, attend = LSTM(6), GRU(6), AttentionModel(3)

    @C.Function
    def decode(history, input):
        encoded = encode(embed(input))
        if not attention:
            return emit(Recurrence(second)(RecurrenceFrom(first)(*encoded.outputs, embed(history))))

        @C.Function
        def step(dh, dc, x):
            return first(dh, dc, C.splice(x, attend(encoded, dh)))

        return emit(Recurrence(second)(Recurrence(step)(embed(history))))

    return decode


def by_hand(decode, sentences, factor):
    """Most probable outputs: all that came before goes through the decoder again for each step."""
    score = decode(
        C.sequence.input_variable(CLASSES, sequence_axis=C.Axis("out")), C.input_variable(**Input[Tensor[CLASSES]])
    )
    history = next(v for v in score.arguments if "out" in str(v.dynamic_axes))
    (read,) = [v for v in score.arguments if v != history]
    found = []
    for sentence in sentences:
        made = [START]
        while len(made) <= math.ceil(len(sentence) * factor):
            scores = score.eval({history: [eye[made]], read: [eye[sentence]]})[0]
            made.append(int(scores[-1].argmax()))
            if made[-1] == END:
                break
        found.append(made[1:])
    return found


@pytest.mark.parametrize("attention", [False, True])
def test_sequences_equal_ones_decoded_by_hand(attention):
    ended = []
    for seed in range(20):
        decode = decoder(attention, seed)

        @C.Function
        @Signature(Input[Tensor[CLASSES]])
        def greedy(input, decode=decode):
            unfold = UnfoldFrom(
                lambda history: decode(history, input) >> C.hardmax,
                until_predicate=lambda w: w[..., END],
                length_increase=1.5,
            )
            return unfold(initial_state=C.Constant(eye[START]), dynamic_axes_like=input)

        sentences = [[2, 3, 4, 2, 3, 3], [4], [3, 3, 2]]
        found = [y.argmax(1).tolist() for y in greedy([eye[s] for s in sentences])]
        assert found == by_hand(decode, sentences, 1.5)
        ended += [y[-1] == END for y in found]
    assert set(ended) == {True, False}


def test_a_state_may_be_another_one_than_the_output():
    like = C.sequence.input_variable(2)
    doubled = UnfoldFrom(lambda state: (state * 10, state + state))(C.Constant(np.float32([1])), like)
    found = doubled.eval({like: [np.zeros((n, 2), "f4") for n in (3, 1)]})
    assert [y.ravel().tolist() for y in found] == [[10, 20, 40], [10]]
    with pytest.raises(TypeError, match="got 3 results"):
        UnfoldFrom(lambda state: (state, state, state))


def test_a_fraction_of_a_step_is_a_step():
    """CNTK's numbers."""
    x = C.sequence.input_variable(1)
    f = UnfoldFrom(lambda s: s * 2, until_predicate=lambda x: C.greater(x, 63), length_increase=1.6)(C.Constant(1), x)
    generated = [y.ravel().tolist() for y in f.eval({x: [np.zeros((3, 1), "f4"), np.zeros((5, 1), "f4")]})]
    assert generated == [[2, 4, 8, 16, 32], [2, 4, 8, 16, 32, 64]]


def test_attention_matches_its_parameters():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    e = C.sequence.input_variable(3, sequence_axis=C.Axis("in"))
    d = C.sequence.input_variable(2, sequence_axis=C.Axis("out"))
    z = AttentionModel(4)(e, d)
    for p in z.parameters:
        p.value = p.value + np.float32(rng.uniform(0, 0.5, p.shape))
    K, Q, v = (next(p.value for p in z.parameters if p.shape == s) for s in ((3, 4), (2, 4), (4, 1)))
    final, inner, query, key = (np.log1p(np.exp(4 * p.value)) / 4 for p in z.parameters if p.shape == ())
    encoded, decoded = (
        [np.float32(rng.uniform(-1, 1, (n, k))) for n in lengths] for lengths, k in (((4, 2), 3), ((1, 3), 2))
    )
    found = z.eval({e: encoded, d: decoded})
    for es, ds, mine in zip(encoded, decoded, found, strict=True):
        for row, one in zip(ds, mine, strict=True):
            shares = oracle.softmax((np.tanh(key * es @ K + query * row @ Q) @ (inner * v)).ravel())
            # A sum of single-precision numbers below 1, which may cancel.
            np.testing.assert_allclose(one, final * shares @ es, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="attention_span of at least 1, got 0"):
        AttentionModel(4, attention_span=0)


@pytest.mark.parametrize("backwards", [True, False])
def test_a_span_of_attention_matches_the_ends(backwards):
    """As if sequences had only their last states, or their first ones."""
    e = C.sequence.input_variable(3, sequence_axis=C.Axis("in"))
    d = C.sequence.input_variable(2, sequence_axis=C.Axis("out"))
    C.cntk_py.set_fixed_random_seed(1)
    whole, part = AttentionModel(4), AttentionModel(4, attention_span=2, attention_axis=-3, go_backwards=backwards)
    C.cntk_py.reset_random_seed(0)
    rng = np.random.default_rng(0)
    encoded, decoded = (
        [np.float32(rng.uniform(-1, 1, (n, k))) for n in lengths] for lengths, k in (((4, 1), 3), ((1, 3), 2))
    )
    cut = [rows[:2] if backwards else rows[-2:] for rows in encoded]
    found, expected = part(e, d).eval({e: encoded, d: decoded}), whole(e, d).eval({e: cut, d: decoded})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_stabilizer_alone_is_found_by_its_name():
    x = C.input_variable(2)
    z = C.layers.Sequential([Stabilizer(name="first"), Dense(2, name="classify"), Dense(3, name="classify too")])(x)
    assert z.first.alpha.shape == ()
    assert z.classify.b.shape == z.classify.shape == (2,)
    assert z.find_by_name("classify too").b.shape == (3,)
    with pytest.raises(AttributeError, match=r"one parameter, constant or function .*, got 2"):
        _ = z.b
