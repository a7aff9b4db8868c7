"""The trainer: every label counts the same, pieces add up, and no data changes nothing."""

from __future__ import annotations

import contextlib
import functools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.train import SGD, Schedule, Trainer, TrainingSession  # noqa: E402
from feedline.train.strategy import Strategy  # noqa: E402
from tests.effort import examples  # noqa: E402


def tagger():
    """One output for each element of each sequence."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 4, dtype=torch.float64)


def corpus(lengths):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 3)) for n in lengths]
    y = [rng.integers(4, size=n) for n in lengths]
    return fl.ArrayDeserializer(x=x, y=y)


def forward(model, minibatch):
    return model(minibatch["x"].torch(layout="packed"))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(layout="packed"), reduction="none")


def wrong(output, minibatch):
    return output.argmax(1) != minibatch["y"].torch(layout="packed")


def trainer(**changes):
    model = tagger()
    learner = SGD(model.named_parameters(), 0.1, gradients="sum")
    return Trainer(model, losses, wrong, learner, forward=forward, **changes)


@settings(max_examples=examples(20))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 30))
def test_pieces_add_up(lengths, microbatch):
    """In pieces or at once, a minibatch gives the same sums and counts, and the same parameters up to rounding."""
    minibatch = fl.MinibatchSource(corpus(lengths), shuffle=False).next_minibatch(sum(lengths))
    pieces = list(minibatch.parts(microbatch))
    assert [i for p in pieces for i in p.ids.tolist()] == minibatch.ids.tolist()
    assert all(p.num_samples <= microbatch or p.num_sequences == 1 for p in pieces)
    assert [p.sweep_end for p in pieces] == [False] * (len(pieces) - 1) + [True]
    undivided, parted = trainer(), trainer(microbatch=microbatch)
    one, two = undivided.train_minibatch(minibatch), parted.train_minibatch(minibatch)
    assert one.samples == two.samples == sum(lengths) == undivided.samples
    assert one.loss == pytest.approx(two.loss, rel=1e-12)
    assert one.metric == pytest.approx(two.metric)
    for a, b in zip(undivided.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@settings(max_examples=examples(10))
@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_every_element_weighs_the_same(lengths):
    """With rates per sample, it does not matter how elements are cut into sequences."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(sum(lengths), 3)), rng.integers(4, size=sum(lengths))
    ends = np.cumsum([0, *lengths])
    cut = fl.ArrayDeserializer(x=fl.Value.from_dense(x, ends), y=fl.Value.from_dense(y, ends))
    single = fl.ArrayDeserializer(x=x, y=y)
    after = []
    for data in (cut, single):
        run = trainer()
        run.train_minibatch(fl.MinibatchSource(data, shuffle=False).next_minibatch(sum(lengths)))
        after.append(run.model.weight.detach())
    torch.testing.assert_close(after[0], after[1], rtol=1e-12, atol=1e-14)


def test_no_data_changes_nothing():
    """The end of a source and an empty part change no parameter and count nothing."""
    run = trainer()
    before = run.model.weight.detach().clone()
    source = fl.MinibatchSource(corpus([3, 2]), max_sweeps=1, partition=(7, 8))
    empty = source.next_minibatch(5)
    assert empty
    assert empty.num_sequences == 0
    for minibatch in (empty, source.next_minibatch(5)):
        summary = run.train_minibatch(minibatch)
        assert not summary
        assert summary.samples == run.test_minibatch(minibatch).samples == 0
    assert run.samples == 0
    assert torch.equal(run.model.weight, before)


def test_testing_changes_nothing():
    """Testing uses evaluation mode, no gradients and no counts, and restores the mode."""
    run = trainer()
    run.model.train()
    before = run.model.weight.detach().clone()
    source = fl.MinibatchSource(corpus([3, 2, 4]), max_sweeps=1, shuffle=False)
    summary = run.test(source.minibatches(4))
    assert summary.samples == 9
    assert not summary.updated
    assert 0 <= summary.metric <= 1
    assert run.model.training
    assert run.model.weight.grad is None
    assert torch.equal(run.model.weight, before)
    assert run.test([]).samples == 0


def test_autocast_and_several_learners():
    """Parts of the model may have different learners. Autocast wraps forward and loss."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 4)).double()
    autocast_states = []

    def look(model, minibatch):
        autocast_states.append(torch.is_autocast_enabled("cpu"))
        return model(minibatch["x"].torch(layout="packed"))

    learners = [SGD(model[0].named_parameters(), 0.1), SGD(model[1].named_parameters(), 0.0)]
    frozen_weight = model[1].weight.detach().clone()
    run = Trainer(model, losses, None, learners, forward=look, autocast=torch.autocast("cpu", dtype=torch.bfloat16))
    summary = run.train_minibatch(fl.MinibatchSource(corpus([3, 2])).next_minibatch(9))
    assert summary
    assert summary.metric is None
    assert autocast_states == [True]
    assert torch.equal(model[1].weight, frozen_weight)


def test_a_compiled_model_trains():
    """A model from torch.compile works (tested with the backend that needs no compiler)."""
    model = tagger()
    compiled = torch.compile(model, backend="eager")
    run = Trainer(compiled, losses, None, SGD(model.named_parameters(), 0.1), forward=forward)
    assert run.train_minibatch(fl.MinibatchSource(corpus([3, 2])).next_minibatch(9))


def test_contradictions_are_refused():
    """No learner, parameters of another model, a parameter twice, losses that are reduced."""
    model, unrelated = tagger(), tagger()
    with pytest.raises(ValueError, match="at least one learner"):
        Trainer(model, losses, None, [])
    with pytest.raises(ValueError, match="of the model"):
        Trainer(model, losses, None, SGD(unrelated.named_parameters(), 0.1))
    with pytest.raises(ValueError, match="one learner"):
        Trainer(model, losses, None, [SGD(model.named_parameters(), 0.1), SGD([model.weight], 0.1)])
    with pytest.raises(ValueError, match="microbatch"):
        Trainer(model, losses, None, SGD(model.named_parameters(), 0.1), microbatch=0)
    with pytest.warns(UserWarning, match="bias"):
        Trainer(model, losses, None, SGD([model.weight], 0.1))
    minibatch = fl.MinibatchSource(corpus([3, 2])).next_minibatch(9)
    for bad in (lambda o, m: losses(o, m).mean(), lambda o, m: 3.0):
        with warnings.catch_warnings(), pytest.raises(ValueError, match="one loss per label sample"):
            Trainer(model, bad, None, SGD(model.named_parameters(), 0.1), forward=forward).train_minibatch(minibatch)


def test_metrics_have_one_number_per_label():
    """A mean, a plain number, or a padded metric of unpadded losses: refused, not averaged wrongly."""
    minibatch = fl.MinibatchSource(corpus([3, 2]), shuffle=False).next_minibatch(9)
    model = tagger()
    for bad in (
        lambda o, m: wrong(o, m).double().mean(),
        lambda o, m: 0.5,
        lambda o, m: torch.zeros(2, 3),
    ):
        run = Trainer(model, losses, bad, SGD(model.named_parameters(), 0.1), forward=forward)
        with pytest.raises(ValueError, match="one metric per label sample"):
            run.train_minibatch(minibatch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_summed_in_single(dtype):
    """1001 losses of 100 have the sum 100,100, which is no float16, and no bfloat16."""
    model = tagger()

    def flat(output, minibatch):
        return (output.sum(1) * 0 + 100).to(dtype)

    run = Trainer(model, flat, None, SGD(model.named_parameters(), 0.1), forward=forward)
    minibatch = fl.MinibatchSource(corpus([1001]), shuffle=False).next_minibatch(2000)
    assert run.train_minibatch(minibatch).loss == run.test_minibatch(minibatch).loss == 100


def test_frozen_parts_stay_in_evaluation_mode():
    """A batch norm in eval() mode stays so through tests, and through the state of a run."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4)).double()
    run = Trainer(model, losses, wrong, SGD(model.named_parameters(), 0.1), forward=forward)
    model[0].eval()
    source = fl.MinibatchSource(corpus([3, 2, 4]), shuffle=False)
    run.train_minibatch(source.next_minibatch(5))
    run.test_minibatch(source.next_minibatch(4))
    assert [module.training for module in model.modules()] == [True, False, True]
    run.load_state_dict(*run.state_dict())
    assert [module.training for module in model.modules()] == [True, False, True]


def test_a_part_thawed_later_learns_from_each_minibatch_alone():
    """Gradients do not accumulate in a parameter that was frozen when the trainer was created."""
    minibatch = fl.MinibatchSource(corpus([3, 2, 4]), shuffle=False).next_minibatch(9)
    runs = []
    for thaw in (False, True):
        model = tagger()
        model.weight.requires_grad_(not thaw)
        run = Trainer(model, losses, wrong, SGD(model.named_parameters(), 0.1), forward=forward)
        model.weight.requires_grad_(True)
        for _ in range(3):
            run.train_minibatch(minibatch)
        runs.append(model.weight.detach().clone())
    assert torch.equal(*runs)


def test_other_objects_than_learners_are_refused():
    """The error has advice for an optimizer."""
    model = tagger()
    with pytest.raises(TypeError, match=r"TorchLearner\(optimizer\)"):
        Trainer(model, losses, None, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(TypeError, match="a learner"):
        Trainer(model, losses, None, [model.parameters()])
    with pytest.raises(ValueError, match="microbatch"):
        Trainer(model, losses, None, SGD(model.named_parameters(), 0.1), microbatch=4.5)


def made(model, loss=losses, metric=None, learners=None, **options):
    learners = SGD(model.parameters(), 0.1) if learners is None else learners
    return Trainer(model, loss, metric, learners, **{"forward": forward, **options})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: made(m, loss=None), r"loss\(output, minibatch\), got NoneType$"),
        (lambda m: made(m, loss=SGD(m.parameters(), 0.1)), r"loss\(output, minibatch\), got SGD; pass learners="),
        (lambda m: made(m, metric=SGD(m.parameters(), 0.1)), r"metric\(output, minibatch\), got SGD; pass learners="),
        (lambda m: made(m, metric=[SGD(m.parameters(), 0.1)]), "got list; pass learners="),
        (lambda m: made(m, loss=torch.optim.SGD(m.parameters(), 0.1)), "got SGD$"),
        (lambda m: made(m, loss=torch.nn.CrossEntropyLoss(reduction="none")), "torch's CrossEntropyLoss.*write loss="),
        (lambda m: made(m, loss=torch.nn.functional.cross_entropy), "torch's cross_entropy, which takes tensors"),
        (lambda m: made(m, metric=torch.nn.functional.l1_loss), "write metric="),
        (lambda m: made(m, loss=lambda output: output), r"loss\(output, minibatch\), got <lambda>\(output\)"),
        (lambda m: made(m, metric=lambda a, b, c: a), r"got <lambda>\(a, b, c\)"),
        (lambda m: made(m, forward=lambda minibatch: minibatch), r"forward\(model, minibatch\), got <lambda>\(minib"),
        (lambda m: made(m, forward=torch.ones(3)), "got Tensor"),
        (lambda m: made(m, autocast=True), "such as torch.autocast"),
        (lambda m: Trainer(losses, m, None, SGD(m.parameters(), 0.1)), "a torch.nn.Module as model, got losses"),
        (
            lambda m: TrainingSession(m, fl.MinibatchSource(corpus([3]), max_sweeps=1)),
            "expected trainer to be a Trainer",
        ),
    ],
)
def test_what_a_trainer_cannot_call_is_refused_when_it_is_made(make, said):
    with pytest.raises(TypeError, match=said):
        make(tagger())


def test_a_partial_and_a_module_may_be_functions_of_a_trainer():
    class Loss(torch.nn.Module):
        def forward(self, output, minibatch):
            return losses(output, minibatch)

    def scaled(factor, output, minibatch, power=1):
        return factor * losses(output, minibatch) ** power

    minibatch = fl.MinibatchSource(corpus([3, 2])).next_minibatch(9)
    assert made(tagger(), Loss(), functools.partial(scaled, 2.0)).train_minibatch(minibatch)


class Takes(torch.nn.Linear):
    """A model that applies a function to its input."""

    def __init__(self, what):
        super().__init__(3, 4)
        self.what = what

    def forward(self, x):
        return super().forward(self.what(x))


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.Sequential(torch.nn.Linear(3, 4)),
        Takes(lambda x: x.view(-1, 3)),
        Takes(lambda x: x + 1),
        torch.nn.Bilinear(3, 3, 4),
    ],
)
def test_a_model_that_takes_tensors_needs_forward(model):
    trainer = made(model, forward=None)
    said = r"(?s)takes a minibatch.* raised .*write forward=.*model\(minibatch\['x'\].torch"
    with pytest.raises(TypeError, match=said) as raised:
        trainer.train_minibatch(fl.MinibatchSource(corpus([3, 2])).next_minibatch(9))
    assert isinstance(raised.value.__cause__, (TypeError, AttributeError))


def test_state_round_trip():
    """Model and learners continue from a state. Another model is refused."""
    source = fl.MinibatchSource(corpus([3, 2, 5, 4]))
    first = trainer()
    first.train_minibatch(source.next_minibatch(6))
    tensors, state = first.state_dict()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    minibatch = source.next_minibatch(6)
    first.train_minibatch(minibatch)
    second = trainer()
    second.load_state_dict(tensors, state)
    second.train_minibatch(minibatch)
    assert torch.equal(first.model.weight, second.model.weight)
    with pytest.raises(fl.StateError, match="model"):
        second.load_state_dict({k: v for k, v in tensors.items() if "bias" not in k}, state)
    with pytest.raises(fl.StateError, match="same model"):
        second.load_state_dict({**tensors, "model/weight": torch.zeros(2, 2)}, state)


def test_clocks_advance_without_an_update():
    """With a learner at rate 0, and a sweep that ends with an empty part, clocks agree and rates follow."""
    model = tagger()
    frozen = SGD([("bias", model.bias)], Schedule([0.0, 0.1]))
    learning = SGD([("weight", model.weight)], 0.1)
    both = Trainer(model, losses, wrong, [learning, frozen], forward=forward)
    bias = model.bias.detach().clone()
    source = fl.MinibatchSource(corpus([3, 4, 5]), shuffle=False, max_sweeps=2)
    assert both.train_minibatch(source.next_minibatch(12))
    assert torch.equal(model.bias, bias)
    assert (frozen.samples, frozen.sweeps) == (learning.samples, learning.sweeps) == (12, 1)
    assert both.train_minibatch(source.next_minibatch(12))
    assert not torch.equal(model.bias, bias)

    alone = trainer()
    empty = fl.MinibatchSource(corpus([3]), shuffle=False, max_sweeps=1, partition=(1, 2)).next_minibatch(12)
    assert (empty.num_sequences, empty.sweep_end) == (0, True)
    assert not alone.train_minibatch(empty)
    assert (alone.learners[0].samples, alone.learners[0].sweeps) == (0, 1)


class InterruptedOnce(Strategy):
    """Ctrl-C comes before the first step, as it may while a step waits."""

    interrupted = False

    @contextlib.contextmanager
    def step(self):
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        yield


def test_a_step_that_is_tried_again_counts_a_sweep_once():
    model = tagger()
    learner = SGD(model.named_parameters(), 0.1)
    learner.strategy = InterruptedOnce()
    several = Trainer(model, losses, wrong, learner, forward=forward)
    source = fl.MinibatchSource(corpus([3, 4]), shuffle=False, max_sweeps=2)
    minibatch = source.next_minibatch(7)
    with pytest.raises(KeyboardInterrupt):
        several.train_minibatch(minibatch)
    assert several.train_minibatch(minibatch)
    assert (several.samples, several.sweeps) == (7, 1)
    minibatch = source.next_minibatch(3)
    assert not minibatch.sweep_end
    assert several.train_minibatch(minibatch)
    assert (several.samples, several.sweeps) == (10, 1)
