"""Models that exchange gradients themselves: sharded by FSDP2, or wrapped in DistributedDataParallel."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.errors import StateError  # noqa: E402
from feedline.train import (  # noqa: E402
    Adam,
    Evaluation,
    MomentumSGD,
    Saving,
    Schedule,
    TorchLearner,
    Trainer,
    TrainingSession,
    data_parallel,
)
from feedline.train.checkpoint import Checkpoints, load  # noqa: E402
from tests.ranks import run  # noqa: E402

LEARNERS = {
    "adam": lambda p: Adam(p, Schedule([0.02, 0.01], epoch_size=100)),
    "clipped": lambda p: MomentumSGD(p, 0.1, 0.9, clip=0.05, clip_by="norm", l2=0.01),
    "all clipped": lambda p: MomentumSGD(p, 0.1, 0.9, clip=0.1, clip_by="global_norm"),
    "torch's": lambda p: TorchLearner(torch.optim.AdamW([one for _, one in p], 0.02)),
}


class Model(torch.nn.Module):
    """A model with a buffer, an unused part, and sizes that two ranks cannot divide evenly."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 7)
        self.head = torch.nn.Linear(7, 3)
        self.idle = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, minibatch):
        return self.head(torch.tanh(self.body(minibatch["x"].torch(layout="packed")) * self.scale))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(layout="packed"), reduction="none")


def data(n=75):
    """Sequences of 1 to 4 samples, so parts of ranks are uneven."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(k, 6)).astype("f4") for k in rng.integers(1, 5, n)]
    return {"x": x, "y": [one[:, :3].argmax(1) for one in x]}


class Stop(Exception):
    """Simulates a power cut."""


class Watch:
    def __init__(self, killed_after):
        self.left, self.seen = killed_after, []

    def on_update(self, run, summary):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Stop

    def on_test(self, run, what, result):
        self.seen.append([what, result.summary.samples, round(float(result.summary.loss_sum), 3)])

    def __getattr__(self, name):
        return lambda *arguments: None


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(model.body, mesh=mesh)
    fully_shard(model.head, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAP = {
    "alone": lambda model: model,
    "fsdp": sharded,
    "ddp": lambda model: torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True),
    "static": lambda model: torch.nn.parallel.DistributedDataParallel(model, static_graph=True),
}


def trains(rank, wrap, learner, folder=None, killed_after=None, microbatch=None, sweeps=2, validates=True):
    if wrap != "alone":
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = WRAP[wrap](Model())
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=3, max_sweeps=sweeps)
    held_out = fl.MinibatchSource(fl.ArrayDeserializer(**data(7)), max_sweeps=1)
    watch = Watch(killed_after)
    session = TrainingSession(
        Trainer(model, losses, None, LEARNERS[learner](model.named_parameters()), microbatch=microbatch),
        source,
        40,
        reporters=[watch],
        saving=None if folder is None else Saving(folder, every=fl.minibatches(2)),
        validation=Evaluation(held_out, every=fl.sweeps(1), size=2) if validates else None,
    )
    try:
        session.run()
    except Stop:
        return None
    state = {
        name.removeprefix("module."): (t.full_tensor() if hasattr(t, "full_tensor") else t).tolist()
        for name, t in model.state_dict().items()
    }
    return {"state": state, "seen": watch.seen, "samples": session.samples}


@functools.cache
def one_process(learner, **settings):
    """Return the parameters that one process learns."""
    (found,) = run(trains, 1, wrap="alone", learner=learner, **settings)
    return found


def near(one, other):
    assert one["samples"] == other["samples"]
    for name, values in other["state"].items():
        np.testing.assert_allclose(one["state"][name], values, rtol=2e-3, atol=2e-4)
    for got, want in zip(one["seen"], other["seen"], strict=True):
        assert got[:2] == want[:2]
        assert got[2] == pytest.approx(want[2], abs=0.02)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("wrap", ["fsdp", "ddp"])
def test_a_model_that_exchanges_gradients_equals_one_process(wrap, learner):
    """Parts are uneven, and in validations a rank's part of a minibatch may be empty."""
    first, second = run(trains, 2, wrap=wrap, learner=learner)
    assert first == second
    near(first, one_process(learner))


@pytest.mark.parametrize("learner", ["adam", "torch's"])
def test_a_killed_run_of_a_sharded_model_ends_as_one_that_went_on(learner, tmp_path):
    undisturbed = run(trains, 2, wrap="fsdp", learner=learner, folder=str(tmp_path / "whole"))
    folder = str(tmp_path / "cut")
    assert run(trains, 2, wrap="fsdp", learner=learner, folder=folder, killed_after=5) == [None, None]
    newest = Checkpoints(folder).paths()[-1]
    assert sorted(path.name for path in newest.iterdir()) == [
        "shard-0.safetensors",
        "shard-1.safetensors",
        "state.json",
        "tensors.safetensors",
    ]
    assert run(trains, 2, wrap="fsdp", learner=learner, folder=folder) == undisturbed


@pytest.mark.parametrize("learner", ["adam", "torch's"])
def test_another_world_size_continues_from_a_sharded_checkpoint(learner, tmp_path):
    """One process without torch.distributed, then three ranks, then one again."""
    folder = str(tmp_path)
    run(trains, 2, wrap="fsdp", learner=learner, folder=folder, killed_after=3)
    run(trains, 3, wrap="fsdp", learner=learner, folder=folder, killed_after=3)
    run(trains, 1, wrap="alone", learner=learner, folder=folder, killed_after=3)
    first, second = run(trains, 2, wrap="fsdp", learner=learner, folder=folder)
    assert first == second
    single = one_process(learner)
    assert 0 < len(first["seen"]) < len(single["seen"])  # a sweep had ended before
    near(first, {**single, "seen": single["seen"][-len(first["seen"]) :]})


def test_minibatches_in_pieces():
    first, second = run(trains, 2, wrap="fsdp", learner="adam", sweeps=1, microbatch=30)
    assert first == second
    near(first, one_process("adam", sweeps=1))


def test_a_damaged_shard_is_passed_over(tmp_path, caplog):
    folder = str(tmp_path)
    run(trains, 2, wrap="fsdp", learner="adam", folder=folder, killed_after=7)
    before, newest = Checkpoints(folder).paths()[-2:]
    shard = newest / "shard-1.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with caplog.at_level(logging.WARNING, "feedline"):
        assert Checkpoints(folder).latest().path == before
    assert "shard-1" in caplog.text
    (before / "shard-0.safetensors").unlink()
    with pytest.raises(StateError):
        load(before)


def pieces_differ(rank):
    torch.distributed.init_process_group("gloo")
    model = sharded(Model())
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()), microbatch=1)
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), shuffle=False)
    with pytest.raises(ValueError, match=r"equally many pieces.*rank 0: \d+, rank 1: \d+"):
        for minibatch in source.minibatches(40):
            trainer.train_minibatch(minibatch)
    return True


def test_unequal_numbers_of_pieces_are_an_error_and_no_deadlock():
    assert run(pieces_differ, 2) == [True, True]


class Sometimes(Model):
    """A model of which one part is used only in some steps."""

    uses_idle = False

    def forward(self, minibatch):
        output = super().forward(minibatch)
        return output + self.idle(output) if self.uses_idle else output


def steps(rank, microbatch):
    """Return the parameters after each step, and the number of empty parts of this rank."""
    torch.manual_seed(1)
    model = wrapped = Sometimes()
    if microbatch is not None:
        torch.distributed.init_process_group("gloo")
        wrapped = WRAP["ddp"](model)
    learner = MomentumSGD(wrapped.named_parameters(), 0.1, 0.9, l2=0.05)
    trainer = Trainer(wrapped, losses, None, learner, microbatch=microbatch)
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=3)
    empty, found = 0, []
    for step in range(12):
        model.uses_idle = step in (4, 5, 9)
        minibatch = source.next_minibatch(4 if step % 2 else 12)
        empty += minibatch.num_sequences == 0
        trainer.train_minibatch(minibatch)
        found.append({name: p.tolist() for name, p in model.named_parameters()})
    return empty, found


@pytest.mark.parametrize("microbatch", [100, 2])
def test_unused_parameters_do_not_change_even_with_empty_parts(microbatch):
    """A rank without data takes part in DDP's exchange with zeros for all parameters, which must not decay them."""
    ((_, alone),) = run(steps, 1, microbatch=None)
    (nothing, first), (empty, second) = run(steps, 2, microbatch=microbatch)
    assert first == second
    assert (nothing, 1 < empty < 12) == (0, True)
    assert alone[3]["idle.weight"] != alone[4]["idle.weight"]
    for ours, theirs in zip(first, alone, strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=2e-5)


def without_a_session(rank, wrap):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = WRAP[wrap](Model())
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()))
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=3, max_sweeps=1)
    for minibatch in source.minibatches(40):
        trainer.train_minibatch(minibatch)
    weight = dict(model.named_parameters())["body.weight" if wrap == "fsdp" else "module.body.weight"].detach()
    return trainer.samples, (weight.full_tensor() if wrap == "fsdp" else weight).tolist()


def test_a_trainer_without_a_session_counts_the_samples_of_all_ranks():
    (single,) = run(trains, 1, wrap="alone", learner="adam", sweeps=1, validates=False)
    for wrap in ("fsdp", "ddp"):
        first, second = run(without_a_session, 2, wrap=wrap)
        assert first == second
        assert first[0] == single["samples"]
        np.testing.assert_allclose(first[1], single["state"]["body.weight"], rtol=2e-3, atol=2e-4)


def small_steps(rank, wrap, session):
    """Learn to the end of all sources, with empty parts, in a session or in a user's loop."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = WRAP[wrap](Model())
    trainer = Trainer(model, losses, None, LEARNERS["all clipped"](model.named_parameters()))
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data(40)), seed=3, max_sweeps=1)
    if session:
        TrainingSession(trainer, source, 6).run()
    while not (session or trainer.ended):
        minibatch = source.next_minibatch(6)
        trainer.train_minibatch(minibatch, ended=not minibatch)
    full_parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return trainer.samples, trainer.sweeps, [p.tolist() for p in full_parameters]


@pytest.mark.parametrize("wrap", ["fsdp", "ddp", "static"])
def test_a_users_loop_equals_a_session_with_empty_parts(wrap):
    """No rank waits for another that has no data."""
    first, second = run(small_steps, 2, wrap=wrap, session=False)
    assert first == second
    assert [first] * 2 == run(small_steps, 2, wrap=wrap, session=True)
    assert first[1] == 1
    assert (first[0] < sum(map(len, data(40)["x"]))) == (wrap != "ddp")


def after_a_session(rank):
    torch.distributed.init_process_group("gloo")
    model = sharded(Model())
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()))
    corpus = fl.ArrayDeserializer(**data(10))
    before = TrainingSession(trainer, fl.MinibatchSource(corpus, max_sweeps=1), 10).run().samples
    trainer.train_minibatch(fl.MinibatchSource(corpus).next_minibatch(1))  # one sequence, on the first rank
    return before, trainer.samples


def test_the_end_of_a_session_decides_on_no_other_minibatch():
    ((before, after), _) = run(after_a_session, 2)
    assert before == after > 0


def refuses(rank, wrap, kind):
    torch.distributed.init_process_group("gloo")
    model = WRAP[wrap](Model())
    with pytest.raises(ValueError, match=f"a {kind}, which exchanges gradients itself"):
        Trainer(model, losses, None, data_parallel(LEARNERS["adam"](model.named_parameters())))
    return True


def a_static_graph(rank):
    """Minibatches of one or two sequences, of which the second rank often has none."""
    torch.distributed.init_process_group("gloo")
    model = WRAP["static"](Model())
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=3, max_sweeps=1)
    trainer = Trainer(model, losses, None, LEARNERS["all clipped"](model.named_parameters()))
    said = []
    logging.getLogger("feedline").addFilter(lambda record: said.append(record.getMessage()))
    samples = TrainingSession(trainer, source, 6).run().samples
    return samples, [p.tolist() for p in model.parameters()], said


def test_a_static_graph_is_not_driven_with_zeros():
    """A backward pass without data would have another graph, and the other rank would wait forever."""
    first, second = run(a_static_graph, 2)
    assert first[:2] == second[:2]
    assert 0 < first[0] < sum(map(len, data()["x"]))
    assert all("without static_graph=True" in text for text in first[2])
    assert first[2]


@pytest.mark.parametrize(("wrap", "kind"), [("fsdp", "sharded model"), ("ddp", "model in DistributedDataParallel")])
def test_learners_that_learn_together_are_refused_for_a_model_that_does(wrap, kind):
    """Each gradient would be exchanged twice, and a rank without data would not take part in DDP's exchange."""
    assert run(refuses, 2, wrap=wrap, kind=kind) == [True, True]


def stops_at(rank, samples):
    torch.distributed.init_process_group("gloo")
    model = sharded(Model())
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.ones((50, 6), "f4"), y=np.zeros(50, "i8")))
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()))
    said = []
    logging.getLogger("feedline").addFilter(lambda record: said.append(record.getMessage()))
    return TrainingSession(trainer, source, 10, max_samples=samples).run().samples, said


def test_a_last_minibatch_that_is_too_small_for_all_ranks_ends_the_run():
    """It would be skipped, and so would all minibatches after it."""
    (first, (said,)), (second, others) = run(stops_at, 2, samples=31)
    assert (first, second, others) == (30, 30, [])
    assert "skip 1 samples: ranks [1] have no part" in said
    assert "every forward pass of a sharded model involves all ranks; choose a larger minibatch" in said
    assert run(stops_at, 2, samples=32) == [(32, [])] * 2


def test_one_process_saves_and_restores_a_sharded_model(tmp_path):
    settings = {"wrap": "fsdp", "learner": "adam", "folder": str(tmp_path)}
    single = run(trains, 1, wrap="fsdp", learner="adam")
    assert run(trains, 1, killed_after=5, **settings) == [None]
    assert run(trains, 1, **settings) == single


def holds(rank, folder, sweeps):
    """Return everything that a checkpoint of a sharded model has, unsharded."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(rank)
    model = sharded(Model())
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data(40)), seed=3, max_sweeps=sweeps)
    trainer = Trainer(model, losses, None, LEARNERS["adam"](model.named_parameters()))
    TrainingSession(trainer, source, 40, saving=Saving(folder)).run()
    tensors = trainer.state_dict()[0]
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).tolist() for name, t in tensors.items()}


def test_any_number_of_ranks_reads_the_very_bits_that_another_saved(tmp_path):
    (saved,) = run(holds, 1, folder=str(tmp_path), sweeps=1)
    for world in (2, 3, 1):
        assert run(holds, world, folder=str(tmp_path), sweeps=1) == [saved] * world


def whole(rank, wrap, learner, folder):
    """Return all tensors of a run that has ended, unsharded, in their order."""
    if wrap != "alone":
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(rank)
    model = WRAP[wrap](Model())
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data(40)), seed=3, max_sweeps=1)
    trainer = Trainer(model, losses, None, LEARNERS[learner](model.named_parameters()))
    TrainingSession(trainer, source, 40, saving=Saving(folder)).run()
    tensors = sorted(trainer.state_dict()[0].items())
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).tolist() for name, t in tensors}


@pytest.mark.parametrize("learner", ["adam", "torch's"])
def test_a_checkpoint_is_of_the_model_in_any_wrapper(learner, tmp_path):
    (saved,) = run(whole, 1, wrap="alone", learner=learner, folder=str(tmp_path / "alone"))
    assert run(whole, 2, wrap="ddp", learner=learner, folder=str(tmp_path / "alone")) == [saved] * 2
    saved, _ = run(whole, 2, wrap="ddp", learner=learner, folder=str(tmp_path / "ddp"))
    assert run(whole, 1, wrap="alone", learner=learner, folder=str(tmp_path / "ddp")) == [saved]
    assert run(whole, 2, wrap="fsdp", learner=learner, folder=str(tmp_path / "ddp")) == [saved] * 2


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod.", "module.module."])
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_checkpoint_with_the_names_of_a_wrapper_is_read(learner, prefix):
    """Older versions wrote a wrapped model's names."""

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    def make():
        model = Model()
        trainer = Trainer(model, losses, None, LEARNERS[learner](model.named_parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        trainer.learners[0].update(2)
        return trainer

    torch.manual_seed(0)
    tensors, state = make().state_dict()
    learner_state = state["learners"][0]
    names = [name for name, _ in learner_state["parameters"]]

    def old(value):
        if isinstance(value, str):
            return f"{prefix}{value}" if any(value == name or value.startswith(f"{name}.") for name in names) else value
        if isinstance(value, dict):
            return {old(key): old(item) for key, item in value.items()}
        return [old(item) for item in value] if isinstance(value, list) else value

    def prefixed(key):
        before, _, name = key.partition("/")
        parameter_name = next((one for one in names if one in name), None)
        if before == "model":
            return f"model/{prefix}{name}"
        return key if parameter_name is None else f"{before}/{name.replace(parameter_name, prefix + parameter_name)}"

    wrapped = {prefixed(key): tensor for key, tensor in tensors.items()}
    assert wrapped.keys() != tensors.keys()
    trainer = make()
    trainer.load_state_dict(wrapped, {**state, "learners": [old(learner_state)]})
    again, after = trainer.state_dict()
    assert after == state
    assert {key: t.tolist() for key, t in again.items()} == {key: t.tolist() for key, t in tensors.items()}
    assert [name for name, _ in after["learners"][0]["parameters"]] == list(trainer.learners[0].parameters)
    assert list(LEARNERS[learner](Wrapper(Model()).named_parameters()).parameters) == names
