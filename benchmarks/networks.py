"""How fast do networks under CNTK's names train, compared with a hand-written torch loop, and how soon are they ready?

Peer: embedding, `torch.nn.LSTM` over a `PackedSequence` and dense layer with `torch.optim.SGD`, the same minibatches
from parameters of the same shapes. For the small network a dense one-hot input, for pictures a `torch.nn.Sequential`
of the layers of CNTK's examples. Unit: samples a second, one thread, and
milliseconds for compiling. Measured: whole updates through `Trainer.train_minibatch`, over
minibatches made before, and a graph of 200 nodes to a module, parameters filled before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import feedline.cntk as C
from benchmarks.harness import Answer, Stage, Target, compare, race, spread

Minibatches = list[tuple[list[Any], list[Any]]]


def run(stage: Stage) -> list[Answer]:
    """The tagger, the classifier of the manual, two networks for pictures, compiling."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    answers = []
    for name, make in (
        ("tagger: 943 words, embedding 150, LSTM 300", _tagger),
        ("classifier: LSTM 20", _classifier),
        ("two layers of 200 over 784 numbers", _layers),
        ("three convolutions and two layers over 28 x 28", _convolutions),
    ):
        ours, theirs = make(stage)
        ran = race({"ours": ours, "theirs": theirs}, stage.rounds(15), warm_up=2)
        question = f"training through CNTK's names, {name}"
        answers.append(compare(ran, "ours", "theirs", question, "samples/s", at_least=1.0))
    return [*answers, _compiling(stage)]


def _minibatches(count: int, words: int, tags: int, longest: int, size: int, whole: bool) -> Minibatches:
    """Sequences of up to ``longest`` words, and a tag a word, or a sequence if ``whole``."""
    rng = np.random.default_rng(0)
    made: Minibatches = []
    for _ in range(count):
        lengths = rng.integers(longest // 4 + 1, longest + 1, size)
        made.append(
            (
                [rng.integers(0, words, n) for n in lengths],
                [rng.integers(0, tags, 1 if whole else n) for n in lengths],
            )
        )
    return made


def _trained(x: Any, y: Any, z: Any, minibatches: Minibatches, dense: bool) -> Callable[[], float]:
    """Run updates through the façade. ``dense``: labels are dense, one a sequence, as in the manual's script."""
    learner = C.sgd(z.parameters, C.learning_parameter_schedule(0.1))
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), [learner])
    classes = np.eye(y.shape[0], dtype=np.float32)
    fed = [
        {x: C.Value.one_hot(a, x.shape[0]), y: classes[np.concatenate(b)] if dense else C.Value.one_hot(b, y.shape[0])}
        for a, b in minibatches
    ]

    def ours() -> float:
        for minibatch in fed:
            trainer.train_minibatch(minibatch)
        return _samples(minibatches)

    return ours


def _samples(minibatches: Minibatches) -> float:
    return float(sum(len(sequence) for words, _ in minibatches for sequence in words))


def _by_hand(
    forward: Callable[[Any], Any], modules: list[Any], minibatches: Minibatches, packed_tags: bool
) -> Callable[[], float]:
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], 0.1)
    pack = torch.nn.utils.rnn.pack_sequence

    def theirs() -> float:
        for words, tags in minibatches:
            data = pack([torch.from_numpy(w) for w in words], enforce_sorted=False)
            if packed_tags:
                target = pack([torch.from_numpy(t) for t in tags], enforce_sorted=False).data
            else:
                target = torch.from_numpy(np.concatenate(tags))
            loss = torch.nn.functional.cross_entropy(forward(data), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return _samples(minibatches)

    return theirs


def _repacked(rows: Any, like: Any) -> Any:
    return torch.nn.utils.rnn.PackedSequence(rows, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def _tagger(stage: Stage) -> tuple[Callable[[], float], Callable[[], float]]:
    minibatches = _minibatches(stage.size(4, 2), 943, 129, 40, 20, whole=False)
    x, y = (C.sequence.input_variable(n, is_sparse=True) for n in (943, 129))
    layers = C.layers
    z = layers.Sequential([layers.Embedding(150), layers.Recurrence(layers.LSTM(300)), layers.Dense(129)])(x)
    embed, lstm, dense = torch.nn.Embedding(943, 150), torch.nn.LSTM(150, 300), torch.nn.Linear(300, 129)

    def forward(data: Any) -> Any:
        return dense(lstm(_repacked(embed(data.data), data))[0].data)

    return _trained(x, y, z, minibatches, dense=False), _by_hand(forward, [embed, lstm, dense], minibatches, True)


def _classifier(stage: Stage) -> tuple[Callable[[], float], Callable[[], float]]:
    minibatches = _minibatches(stage.size(200, 2), 1000, 5, 4, 3, whole=True)
    x, y = C.sequence.input_variable(1000), C.input_variable(5)
    layers = C.layers
    z = layers.Dense(5)(C.sequence.last(layers.Recurrence(layers.LSTM(20))(x)))
    lstm, dense = torch.nn.LSTM(1000, 20), torch.nn.Linear(20, 5)

    def forward(data: Any) -> Any:
        rows = torch.nn.functional.one_hot(data.data, 1000).float()
        return dense(lstm(_repacked(rows, data))[1][0][0])

    return _trained(x, y, z, minibatches, dense=True), _by_hand(forward, [lstm, dense], minibatches, False)


def _layers(stage: Stage) -> tuple[Callable[[], float], Callable[[], float]]:
    x, layers = C.input_variable(784), C.layers
    z = layers.Sequential(
        [layers.Dense(200, activation=C.relu), layers.Dense(200, activation=C.relu), layers.Dense(10)]
    )
    module = torch.nn.Sequential(
        torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)
    )
    return _of_pictures(x, z(x), module, stage.size(60, 2))


def _convolutions(stage: Stage) -> tuple[Callable[[], float], Callable[[], float]]:
    x, layers, nn = C.input_variable((1, 28, 28)), C.layers, torch.nn
    with C.default_options(activation=C.relu, pad=False):
        z = layers.Sequential(
            [
                layers.Convolution2D((5, 5), 32, pad=True),
                layers.MaxPooling((3, 3), (2, 2)),
                layers.Convolution2D((3, 3), 48),
                layers.MaxPooling((3, 3), (2, 2)),
                layers.Convolution2D((3, 3), 64),
                layers.Dense(96),
                layers.Dense(10, activation=None),
            ]
        )(x)
    module = nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(32, 48, 3), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(48, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 96), nn.ReLU(), nn.Linear(96, 10)),
    )
    return _of_pictures(x, z, module, stage.size(8, 1))


def _of_pictures(x: Any, z: Any, module: Any, count: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Run updates over ``count`` minibatches of 64 pictures. Labels are one-hot for CNTK's names, classes for torch."""
    rng = np.random.default_rng(0)
    pictures = [rng.random((64, *x.shape), np.float32) for _ in range(count)]
    classes = [rng.integers(0, 10, 64) for _ in range(count)]
    y, one_hot = C.input_variable(10), np.eye(10, dtype=np.float32)
    learner = C.sgd(z.parameters, C.learning_parameter_schedule(0.01))
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)), [learner])
    fed = [{x: a, y: one_hot[b]} for a, b in zip(pictures, classes, strict=True)]
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def ours() -> float:
        for minibatch in fed:
            trainer.train_minibatch(minibatch)
        return 64.0 * count

    def theirs() -> float:
        for a, b in zip(pictures, classes, strict=True):
            target = torch.from_numpy(b)
            out = module(torch.from_numpy(a))
            loss = torch.nn.functional.cross_entropy(out, target)
            (out.argmax(1) != target).float().mean()  # as CNTK's trainer does for each minibatch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return 64.0 * count

    return ours, theirs


def _compiling(stage: Stage) -> Answer:
    from feedline.networks import topological
    from feedline.networks.compile import Network

    x = C.input_variable(16)
    z: Any = x
    while len(topological([z.node])) < 200:
        z = C.layers.Dense(16, activation=C.tanh)(z)
    Network([z.node])
    took = []
    for _ in range(stage.rounds(30)):
        began = time.process_time()
        Network([z.node])
        took.append(1e3 * (time.process_time() - began))
    return Answer(
        question=f"compiling a graph of {len(topological([z.node]))} nodes to a torch module",
        unit="ms",
        ours=statistics.median(took),
        target=Target("ours", "<=", 200),
        spread=spread(took),
        detail={"ms": took},
    )
