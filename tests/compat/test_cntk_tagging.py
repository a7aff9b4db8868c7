"""Slot tagging through CNTK's names and in feedline's own words: the same numbers from the same initial parameters.

Embedding, LSTM and a dense layer, on the ATIS corpus where it is at hand, and on made-up sentences of its shape.
Both read the file themselves, in CNTK's order, and have nothing in common above the data but the initial values.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.train import FSAdaGrad, Schedule, Trainer  # noqa: E402
from tests.docs.pages import ROOT  # noqa: E402

ATIS = [folder / "shared" / "data" / "atis.train.ctf" for folder in (ROOT.parent, ROOT.parent.parent)]
WORDS, TAGS, WIDTH, CELLS = 943, 129, 30, 40
SIZE, MINIBATCHES, RATE = 400, 30, 0.003


@pytest.fixture(params=["atis", "made up"])
def path(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "atis":
        found = [path for path in ATIS if path.is_file()]
        if not found:
            pytest.skip(f"{ATIS[0]} is not there")
        return found[0]
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, WORDS, rng.integers(1, 20)) for _ in range(900)]
    tags = [s // 100 + 10 * np.concatenate([[0], s[:-1] > WORDS // 2]) for s in sentences]
    fl.write_ctf(tmp_path / "made.ctf", S0=fl.Value.one_hot(sentences, WORDS), S2=fl.Value.one_hot(tags, TAGS))
    return tmp_path / "made.ctf"


def through_cntk(path):
    """(initial parameters, loss and error of each minibatch, final parameters)."""
    streams = C.io.StreamDefs(
        query=C.io.StreamDef("S0", WORDS, is_sparse=True), slots=C.io.StreamDef("S2", TAGS, is_sparse=True)
    )
    reader = C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomization_seed=3)
    x, y = (C.sequence.input_variable(n, is_sparse=True) for n in (WORDS, TAGS))
    with C.layers.default_options(initial_state=0.1):
        layers = [C.layers.Embedding(WIDTH), C.layers.Recurrence(C.layers.LSTM(CELLS)), C.layers.Dense(TAGS)]
        z = C.layers.Sequential(layers)(x)
    rate = C.learning_parameter_schedule_per_sample([RATE, RATE / 4], epoch_size=5000)
    learner = C.fsadagrad(z.parameters, rate, momentum=C.momentum_as_time_constant_schedule(700))
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)), [learner])
    began = [p.value for p in z.parameters]
    reported = []
    for _ in range(MINIBATCHES):
        trainer.train_minibatch(reader.next_minibatch(SIZE, {x: reader.streams.query, y: reader.streams.slots}))
        reported.append((trainer.previous_minibatch_loss_average, trainer.previous_minibatch_evaluation_average))
    return began, reported, [p.value for p in z.parameters]


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, CELLS)
        self.dense = torch.nn.Linear(CELLS, TAGS)

    def forward(self, minibatch):
        words = minibatch["words"]
        embedded = self.embedding(words.class_indices().torch(layout="packed")).split(words.lengths.tolist())
        state = torch.full((1, len(embedded), CELLS), 0.1)
        states, _ = self.lstm(torch.nn.utils.rnn.pack_sequence(embedded, enforce_sorted=False), (state, state))
        return self.dense(torch.cat(torch.nn.utils.rnn.unpack_sequence(states)))


def tags(minibatch):
    return minibatch["tags"].class_indices().torch(layout="packed")


def loss(scores, minibatch):
    return torch.nn.functional.cross_entropy(scores, tags(minibatch), reduction="none")


def error(scores, minibatch):
    return scores.argmax(1) != tags(minibatch)


def gates(weights):
    """Reorder input, candidate, forget, output to input, forget, candidate, output, or back."""
    i, g, f, o = np.split(np.asarray(weights), 4, -1)
    return np.concatenate([i, f, g, o], -1)


def in_own_words(path, initial):
    """As `through_cntk`, from its initial parameters."""
    model = Tagger()
    D, d, b, W, H, E = initial
    values = [E, gates(W).T, gates(H).T, gates(b), np.zeros_like(b), D.T, d]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    model.lstm.bias_hh_l0.requires_grad_(False)
    corpus = fl.CTFDeserializer(
        path, words=fl.Stream(WORDS, sparse=True, field="S0"), tags=fl.Stream(TAGS, sparse=True, field="S2")
    )
    source = fl.MinibatchSource(corpus, order="cntk", shuffle=fl.Window(chunks=128), seed=3)
    rate = Schedule.per_sample([RATE, RATE / 4], epoch_size=5000)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    learner = FSAdaGrad(trained, rate, momentum=Schedule.time_constant(700), gradients="sum")
    trainer = Trainer(model, loss, error, learner)
    reported = []
    for _ in range(MINIBATCHES):
        summary = trainer.train_minibatch(source.next_minibatch(SIZE))
        reported.append((summary.loss, summary.metric))
    e, w, h, c, _, k, m = (p.detach().numpy() for p in model.parameters())
    return reported, [k.T, m, gates(c), gates(w.T), gates(h.T), e]


def test_both_ways_give_the_same_numbers(path):
    torch.manual_seed(0)
    initial, old, ended = through_cntk(path)
    new, own = in_own_words(path, initial)
    np.testing.assert_allclose([a for a, _ in new], [a for a, _ in old], rtol=2e-5)
    np.testing.assert_allclose([e for _, e in new], [e for _, e in old], atol=1.01 / SIZE)  # a tie in a minibatch
    assert old[-1][0] < old[0][0] - 0.2
    for mine, theirs in zip(own, ended, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-5)
