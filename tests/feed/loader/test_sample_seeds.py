"""Random numbers of samples: their seeds, generators that stay untouched, and the cost of wrong guesses."""

from __future__ import annotations

import functools
import json
import random
import sys
import threading

import numpy as np
import pytest

import feedline as fl
from feedline.concurrency.turns import turns
from feedline.feed.loader import global_generators
from feedline.feed.loader import sample_seeds as seeding
from feedline.feed.loader.global_generators import all_generators
from tests.laws.items import content

torch = pytest.importorskip("torch", reason="torch is not installed")


class Drawing:
    """Item ``i`` is the result of `draw`. Reads are counted."""

    def __init__(self, draw, n=24):
        self.draw, self.n, self.reads = draw, n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.reads.append(index)
        return float(self.draw(index))


GLOBALS = {
    "random": lambda _: random.random(),
    "gauss": lambda _: random.gauss(0, 1),
    "numpy": lambda _: np.random.random(),
    "normal": lambda _: np.random.standard_normal(),
    "torch": lambda _: torch.rand(()),
    "randn": lambda _: torch.randn(()),
    "like": lambda _: torch.rand_like(torch.zeros(())),
    "twice": lambda _: torch.rand(()) + 10 * torch.rand(2)[0] + 10 * torch.empty(2).normal_()[1],
}


def states():
    return random.getstate(), str(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", GLOBALS)
@pytest.mark.parametrize("loose_end", [False, True])
def test_the_loop_s_generators_are_left_alone(name, loose_end):
    """Also where a half of a pair of normal numbers waits in them."""
    loader = fl.DataLoader(Drawing(GLOBALS[name]), batch_size=3, shuffle=True, seed=1)
    for _ in loader:
        if loose_end:
            random.gauss(0, 1), np.random.standard_normal(), torch.randn(())
        before = states()
        next(iter(loader))
        assert states() == before


@pytest.mark.parametrize("name", GLOBALS)
def test_what_the_loop_draws_does_not_reach_samples(name):
    """Any state of the global generators, between any two batches."""
    expected = content(fl.DataLoader(Drawing(GLOBALS[name]), batch_size=3, seed=1))
    got = []
    for i, batch in enumerate(fl.DataLoader(Drawing(GLOBALS[name]), batch_size=3, seed=1)):
        got += content([batch])
        for _ in range(i):
            random.gauss(0, 1), np.random.standard_normal(), torch.randn(())
    assert got == expected
    assert len(set(got)) == 24


@pytest.mark.parametrize("name", GLOBALS)
@pytest.mark.parametrize("first", [0, 7, 15, 23])
def test_drawing_late_is_noticed(name, first):
    """The first item that draws has the same numbers as always, for which one batch is read twice."""

    def from_then_on(index):
        return GLOBALS[name](index) if index >= first else 0.0

    always = content(fl.DataLoader(Drawing(GLOBALS[name]), batch_size=2, seed=9))
    data = Drawing(from_then_on)
    got = content(fl.DataLoader(data, batch_size=2, seed=9))
    assert got[first:] == always[first:]
    assert len(data.reads) == 24 + 2


def test_a_batch_that_is_read_again_skips_its_items_once(tmp_path):
    def fails_late(index):
        if index == 15:
            raise ValueError(repr(random.random()))
        return 0.0

    data, listed = Drawing(fails_late), tmp_path / "listed.jsonl"
    loader = fl.DataLoader(data, batch_size=2, seed=9, on_error=fl.Quarantine(listed))
    list(loader)
    assert data.reads.count(15) == 2
    assert [json.loads(line)["sequence"] for line in listed.read_text().splitlines()] == [15]
    assert loader.stats().skipped == 1


# At most one worker: what a second one draws could be seeded before the first attempt to read item 20.
@pytest.mark.parametrize("where", [{}, {"num_workers": 1}, {"num_workers": 1, "workers": "thread"}])
def test_seeded_numbers_may_lead_to_another_generator(where):
    """A batch is read until all that it draws is seeded: here each attempt draws from one generator more."""

    def chosen(index):
        if index < 20:
            return 0.0
        attempt = data.reads.count(index)
        drawn = [random.random(), np.random.random() if attempt > 1 else 0, torch.rand(()) if attempt > 2 else 0]
        return sum(map(float, drawn))

    always = Drawing(lambda _: random.random() + np.random.random() + float(torch.rand(())))
    data = Drawing(chosen)
    before = states()
    got = content(fl.DataLoader(data, batch_size=1, seed=3, **where))
    assert got[20] == content(fl.DataLoader(always, batch_size=1, seed=3))[20]
    assert states() == before


def test_loops_in_threads_over_one_loader_draw_the_same(request):
    """Without workers they share the process's generators, which are seeded and restored for each batch."""
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    expected = content(fl.DataLoader(Drawing(GLOBALS["numpy"]), batch_size=6, seed=1))
    before = states()
    loader = fl.DataLoader(Drawing(GLOBALS["numpy"]), batch_size=6, seed=1)
    iterators = [iter(loader) for _ in range(6)]
    got = [None] * len(iterators)

    def loop(i):
        got[i] = content(iterators[i])

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(len(iterators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got[0] == expected
    again = fl.DataLoader(Drawing(GLOBALS["numpy"]), batch_size=6, seed=1)
    assert got == [content(again) for _ in iterators]
    assert states() == before


def test_a_cached_normal_number_of_the_loop_is_not_a_sample_s():
    """It does not change the words of the generator. Only NumPy has it."""
    late = Drawing(lambda index: np.random.standard_normal() if index == 20 else 0.0)
    expected = content(fl.DataLoader(late, batch_size=1, seed=3))[20]
    iterator = iter(fl.DataLoader(late, batch_size=1, seed=3))
    for _ in range(20):
        next(iterator)
    np.random.seed(1)
    np.random.standard_normal()
    before = states()
    assert content([next(iterator)]) == [expected]
    assert states() == before


def test_errors_come_of_seeded_numbers():
    """An item that fails at random fails in every schedule."""

    def fails(index):
        if index == 20 and random.random() < 2:
            raise ValueError(repr(random.random()))
        return 0.0

    told = []
    for size in (1, 4, 24):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # the test compares the number
            list(fl.DataLoader(Drawing(fails), batch_size=size, seed=3))
        told.append(str(caught.value))
    assert len(set(told)) == 1


def test_sample_rng_outside_of_samples():
    with pytest.raises(RuntimeError, match="while a DataLoader makes a sample"):
        fl.sample_rng()
    list(fl.DataLoader(Drawing(lambda _: fl.sample_rng().random())))
    with pytest.raises(RuntimeError, match="default_rng"):
        fl.sample_rng()


def test_sample_rng_is_one_generator_a_sample():
    """Called twice, it continues. No two samples, and no two sweeps, share numbers."""

    def two(_):
        assert fl.sample_rng() is fl.sample_rng()
        return fl.sample_rng().random()

    loader = fl.DataLoader(Drawing(two), batch_size=5, shuffle=True, seed=1)
    sweeps = [content(loader) for _ in range(2)]
    assert sweeps[0] == content(fl.DataLoader(Drawing(two), batch_size=1, shuffle=True, seed=1))
    assert len({number for sweep in sweeps for number in sweep}) == 48


def test_collate_fn_has_numbers_of_the_batch():
    """On any worker. Another batch has other numbers."""

    def mixed(samples):
        return torch.tensor([random.random(), fl.sample_rng().random()], dtype=torch.float64)

    data = list(range(12))
    first, again = (content(fl.DataLoader(data, batch_size=4, seed=1, collate_fn=mixed)) for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)


class Together(Drawing):
    def __getitems__(self, indices):
        return [float(self.draw(index)) for index in indices]


@pytest.mark.parametrize("name", GLOBALS)
def test_getitems_has_numbers_of_the_batch(name):
    """The batch is read in one call, so it has one seed."""
    expected = content(fl.DataLoader(Together(GLOBALS[name]), batch_size=6, seed=1))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert content(fl.DataLoader(Together(GLOBALS[name]), batch_size=6, seed=1)) == expected
    assert len(set(expected)) == 24


def test_a_subset_is_read_item_by_item():
    """Items are read one by one: random numbers do not depend on the batch size."""
    subset = torch.utils.data.Subset(Drawing(GLOBALS["numpy"]), [5, 3, 8, 1])
    orders = [content(fl.DataLoader(subset, batch_size=size, seed=1)) for size in (1, 4)]
    assert orders[0] == orders[1]


def test_repeated_items_of_a_weighted_sweep_are_augmented_again():
    loader = fl.DataLoader(Drawing(GLOBALS["numpy"], 4), sampler=fl.Weighted([1, 0, 0, 0]), batch_size=2, seed=1)
    assert len(set(content(loader))) == 4


@pytest.mark.parametrize("name", [*GLOBALS, "none"])
def test_threads_draw_as_one_process_does(name):
    """`random` and NumPy one batch at a time, torch by a generator of the thread's own."""
    draw = GLOBALS.get(name, lambda index: index)
    expected = content(fl.DataLoader(Drawing(draw, 60), batch_size=3, seed=1))
    before = states()
    loader = fl.DataLoader(Drawing(draw, 60), batch_size=3, seed=1, num_workers=3, workers="thread")
    assert content(loader) == expected
    assert content(loader) == content(fl_second_sweep(draw))
    assert states() == before


F = torch.nn.functional
LONG = torch.ones(2, 3, 64)
WITHOUT_GENERATOR = {
    "dropout": lambda: F.dropout(LONG),
    "in place": lambda: F.dropout(LONG.clone(), inplace=True),
    "module": lambda: torch.nn.Dropout2d(0.3)(LONG[None]),
    "alpha": lambda: F.alpha_dropout(LONG, 0.3, training=True),
    "rrelu": lambda: F.rrelu(-LONG, training=True),
    "gumbel": lambda: F.gumbel_softmax(LONG),
    "pooling": lambda: F.fractional_max_pool2d(torch.arange(400.0).view(1, 20, 20), 2, output_size=9),
    "attention": lambda: F.scaled_dot_product_attention(LONG, LONG, LONG, dropout_p=0.4),
    "lstm": lambda: made(lambda: torch.nn.LSTM(64, 3, num_layers=2, dropout=0.5))(LONG)[0].detach(),
    "integers": lambda: torch.randint_like(LONG, 3, 9),
    "range": lambda: torch.randint_like(LONG, 9),
    "gamma": lambda: torch.distributions.Gamma(2.0, 1.0).sample((5,)),
    "binomial": lambda: torch.distributions.Binomial(10, torch.tensor(0.5)).sample((20,)),
    "dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(9)).sample(),
    "weights": lambda: torch.nn.Linear(3, 2).weight.detach(),
}


def made(module):
    """A module with weights that are always the same."""
    built = module()
    for parameter in built.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    return built


@pytest.mark.parametrize("name", WITHOUT_GENERATOR)
def test_functions_of_torch_that_take_no_generator_draw_the_same_in_threads(name):
    """They would draw from the generator of the loop, which draws from it too."""

    def draw(_):
        drawn = WITHOUT_GENERATOR[name]().double().flatten()
        return (drawn * torch.arange(1, len(drawn) + 1)).sum() + 1000 * torch.rand(())

    expected = content(fl.DataLoader(Drawing(draw, 24), batch_size=3, seed=1))
    assert len(set(expected)) == 24
    before = states()
    loader = fl.DataLoader(Drawing(draw, 24), batch_size=3, seed=1, num_workers=3, workers="thread")
    assert content(loader) == expected
    assert states() == before


def test_an_operation_that_can_be_given_no_generator_is_an_error_in_threads():
    def draw(_):
        return torch.native_dropout(LONG, 0.5, True)[0].sum()

    list(fl.DataLoader(Drawing(draw), batch_size=3, seed=1))
    with pytest.raises(RuntimeError, match=r"native_dropout.*use worker processes"):
        list(fl.DataLoader(Drawing(draw), batch_size=3, seed=1, num_workers=1, workers="thread"))


def fl_second_sweep(draw):
    loader = fl.DataLoader(Drawing(draw, 60), batch_size=3, seed=1)
    list(loader)
    return loader


def test_another_bit_generator_is_its_owner_s():
    """A user who replaces NumPy's global generator seeds it. Nothing else changes."""
    old = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        expected = np.random.Generator(np.random.PCG64(1)).bit_generator.random_raw()
        list(fl.DataLoader(Drawing(lambda index: index), batch_size=3))
        assert np.random.get_bit_generator().random_raw() == expected
    finally:
        np.random.set_bit_generator(old)


@pytest.mark.parametrize("by", ["memory", "functions"])
def test_every_draw_is_noticed(by, monkeypatch):
    """From any state, whole rounds of the generator included, and the number that was put aside alone."""
    for name in ("python_memory", "normal_memory"):
        assert getattr(global_generators, name)() is not None
        if by == "functions":
            monkeypatch.setattr(global_generators, name, lambda: None)
    draws = [
        [random.random, lambda: random.gauss(0, 1), lambda: random.getrandbits(624 * 32)],
        [np.random.random, np.random.standard_normal, lambda: np.random.bytes(624 * 4)],
        [lambda: torch.rand(()), lambda: torch.randn(1), lambda: torch.rand(624), lambda: torch.randn(64)],
    ]
    kept = states()
    for generator, kinds in zip(all_generators(), draws, strict=True):
        for number in range(40):
            mark = generator.mark()
            assert not generator.changed(mark)
            before = states()
            kinds[number % len(kinds)]()
            assert generator.changed(mark)
            generator.restore(mark)
            assert states() == before
            kinds[(number + number // 7) % len(kinds)]()
    assert states() != kept


@pytest.mark.parametrize(
    ("early", "ends"),
    [(False, "second"), (True, "second"), (True, "first")],
    ids=["the other one marks first", "the other one draws first", "the other one restores first"],
)
def test_a_thread_that_restores_hides_no_draws_of_another_one(early, ends):
    """The restore undoes another thread's draws, too, and that thread must detect them nevertheless."""
    shared = seeding.Seeding(restore=True, threads=True)

    def drawn(at):
        at(7)
        return random.random(), np.random.random()

    expected, before = seeding.Seeding(restore=True).run((5, 0), drawn), states()
    begun, entered, drew, restored = (threading.Event() for _ in range(4))

    def first(at):
        if begun.is_set():
            return drawn(at)
        result = drawn(at) if early else None
        begun.set()
        assert entered.wait(60)
        result = result or drawn(at)
        drew.set()
        assert ends == "first" or restored.wait(60)
        return result

    def second(at):
        entered.set()
        assert drew.wait(60)
        assert ends == "second" or restored.wait(60)
        return drawn(at)

    got = []
    threads = [
        threading.Thread(target=lambda work=work: got.append(shared.run((5, 0), work))) for work in (first, second)
    ]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    while not any(reading.again for reading in list(turns.inside)):  # one has restored, and waits for the other one
        assert threads[1].is_alive()
        drew.wait(0.001)
    restored.set()
    for thread in threads:
        thread.join()
    assert got == [expected, expected]
    assert states() == before


def test_the_oldest_marks_are_restored_for_any_end_in_between():
    """Three threads: the marks of the second lie after draws of the first, and the third has restored since."""
    before = states()
    events = {name: threading.Event() for name in ("drew", "marked", "first", "third")}

    def first(at):
        random.random()
        events["drew"].set()
        assert events["marked"].wait(60)

    def second(at):
        events["marked"].set()
        assert events["third"].wait(60)

    def third(at):
        random.random()

    def run(work, *then):
        seeding.Seeding(restore=True, threads=True)._attempt((5, 0), work)
        for name in then:
            events[name].set()

    threads = [threading.Thread(target=run, args=(first, "first")), threading.Thread(target=run, args=(second,))]
    threads[0].start()
    assert events["drew"].wait(60)
    threads[1].start()
    threads[0].join()
    run(third, "third")
    threads[1].join()
    assert states() == before
