"""Stores of several processes: values of n workers sum as if one had pushed them all, and replicas are equal."""

from __future__ import annotations

import gc
import signal
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.errors import StoreError  # noqa: E402
from feedline.kvstore import RefusedError, create, optimizer  # noqa: E402
from tests.ranks import Failure, Job, run, say  # noqa: E402

SHAPES = {"a": (3, 4), "b": (5,), "c": (), "d": (7, 2), "e": (0, 3)}


# ---- the agreement law ----------------------------------------------------------------------------------------


def script(seed, world):
    """Draw steps: (verb, keys, for each worker a list of values per key, or None)."""
    rng = np.random.default_rng(seed)

    def value(key):
        # Sums of these are exact, in any order.
        return torch.from_numpy(np.asarray(rng.integers(-64, 64, SHAPES[key]) / 8, dtype="f4"))

    def given(key, kind):
        if kind == "nothing":
            return []
        if kind == "rows" and len(SHAPES[key]) > 1 and SHAPES[key][0]:
            ids = torch.from_numpy(rng.integers(0, SHAPES[key][0], rng.integers(0, 4)))
            rows = torch.from_numpy(np.asarray(rng.integers(-64, 64, (len(ids), *SHAPES[key][1:])) / 8, dtype="f4"))
            return [torch.sparse_coo_tensor(ids[None], rows, SHAPES[key], check_invariants=True)]
        return [value(key) for _ in range(rng.integers(1, 3))]

    steps = []
    for _ in range(25):
        keys = [str(k) for k in rng.permutation(list(SHAPES))[: rng.integers(1, len(SHAPES) + 1)]]
        each = []
        for _ in range(world):
            kind = rng.choice(["dense", "dense", "rows", "nothing"])
            each.append(None if kind == "nothing" else [given(key, kind) for key in keys])
        if all(one is None for one in each):
            each[0] = [given(key, "dense") for key in keys]
        steps.append((str(rng.choice(["push", "push", "pushpull", "sgd", "function", "assign"])), keys, each))
    return steps


def double(key, merged, stored):
    stored.add_(merged.to_dense() if merged.layout is not torch.strided else merged, alpha=0.5)


def follow(store, steps, worker, world):
    """Return a store's arrays after every step. ``worker`` None: with all workers' values at once."""
    store.init(list(SHAPES), [torch.full(shape, float(i)) for i, shape in enumerate(SHAPES.values())])
    arrays = []
    for verb, keys, each in steps:
        if verb == "sgd":
            store.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)
        elif verb == "function":
            store.set_updater(double)
        elif verb == "assign":
            store.set_updater(None)
        if worker is None:
            values = [[v for one in each if one is not None for v in one[k]] for k in range(len(keys))]
        else:
            values = each[worker]
        outs = [torch.full(SHAPES[key], 99.0) for key in keys]
        if verb == "pushpull":
            store.pushpull(keys, values, outs)
        else:
            store.push(keys, values)
            store.pull(keys, outs)
        everything = [torch.full(shape, 99.0) for shape in SHAPES.values()]
        store.pull(list(SHAPES), everything)
        assert all(torch.equal(out, everything[list(SHAPES).index(key)]) for key, out in zip(keys, outs, strict=True))
        arrays.append([one.tolist() for one in everything])
    return arrays


def follows(rank, seeds, world, kind):
    results = []
    for seed in seeds:
        with create(kind) as store:
            assert (store.rank, store.num_workers, store.type) == (rank, world, kind)
            results.append(follow(store, script(seed, world), rank, world))
    return results


@pytest.mark.parametrize(("world", "kind"), [(2, "dist_sync"), (3, "dist_sync"), (2, "dist_device_sync")])
def test_agreement_of_workers_with_one_process(world, kind):
    """Law: n workers end with the arrays of one store that gets all values, bit for bit if sums are exact."""
    seeds = range(4)
    results = run(follows, world, seeds=list(seeds), world=world, kind=kind)
    for k, seed in enumerate(seeds):
        alone = follow(create("local"), script(seed, world), None, world)
        for rank_results in results:
            assert rank_results[k] == alone


def compressed(rank, parameters, values):
    store = create("dist_sync")
    store.set_gradient_compression(parameters)
    store.init(["w", "v"], [torch.zeros(len(values[0][0])), torch.zeros(3)])
    outputs = []
    for each in values:
        outs = [torch.empty(len(each[rank])), torch.empty(3)]
        store.pushpull(["w", "v"], [torch.tensor(each[rank]), torch.full((3,), 0.3)], outs)
        outputs.append(outs[0].tolist())
    store.close()
    return outputs


def in_pieces(rank, kind, sizes):
    store = create("dist_sync")
    store.set_gradient_compression({"type": kind})
    keys = [str(n) for n in sizes]
    values = [torch.randn(n, generator=torch.Generator().manual_seed(n + rank)) for n in sizes]
    outs = [torch.empty(n) for n in sizes]
    store.init(keys, [torch.zeros(n) for n in sizes])
    for _ in range(2):
        store.pushpull(keys, values, outs)
    store.close()
    return [out.numpy() for out in outs]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kind", ["2bit", "bf16"])
def test_codes_in_pieces_are_decoded_in_pieces(kind, world):
    """Keys end within a piece, at its end, and after several, and one has no elements."""
    sizes = [0, 3, (1 << 19) - 32, 700_001, 1, 1_100_000]
    results = run(in_pieces, world, kind=kind, sizes=sizes)
    store = create("device")
    store.set_gradient_compression({"type": kind})
    for k, n in enumerate(sizes):
        store.init(n, torch.zeros(n))
        values = [torch.randn(n, generator=torch.Generator().manual_seed(n + rank)) for rank in range(world)]
        expected = torch.empty(n)
        for _ in range(2):
            store.push(n, values)
        store.pull(n, expected)
        for outs in results:
            assert outs[k].tobytes() == expected.numpy().tobytes(), n


@pytest.mark.parametrize("kind", ["2bit", "1bit", "fp16", "bf16"])
def test_compression_of_a_worker_equals_a_devices(kind):
    """A worker sends the same as a device of a ``device`` store."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 2, 37)).astype("f4").tolist()
    first, second = run(compressed, 2, parameters={"type": kind}, values=values)
    assert first == second
    store = create("device")
    store.set_gradient_compression({"type": kind})
    store.init("w", torch.zeros(37))
    for each, got in zip(values, first, strict=True):
        store.push("w", [torch.tensor(one) for one in each])
        out = torch.empty(37)
        store.pull("w", out)
        assert out.tolist() == got


# ---- replicas -------------------------------------------------------------------------------------------------


def replicas(rank, folder):
    store = create("dist_sync")
    generator = torch.Generator().manual_seed(rank)
    weights = [torch.randn(n, generator=generator) for n in (1000, 3, 70000)]
    keys = list(range(3))
    store.init(keys, weights)
    store.set_optimizer("adam", learning_rate=0.1)
    for _ in range(5):
        store.push(keys, [torch.randn(len(w), generator=generator) for w in weights])
        weights[0].fill_(7)  # pushed values were copied
    store.save_optimizer_states(f"{folder}/{rank}")
    outs = [torch.empty(len(w)) for w in weights]
    store.pull(keys, outs)
    rows = torch.empty(2)
    store.row_sparse_pull(2, rows, torch.tensor([69999, 0]))
    assert rows.tolist() == [outs[2][69999].item(), outs[2][0].item()]
    store.barrier()
    store.close()
    store.close()
    with pytest.raises(RefusedError, match="closed"):
        store.pull(keys, outs)
    return [out.tolist() for out in outs]


def test_replicas_are_equal_to_the_bit_and_begin_as_worker_0_does(tmp_path):
    first, second = run(replicas, 2, folder=str(tmp_path))
    assert first == second
    states = [(tmp_path / str(rank)).read_bytes() for rank in range(2)]
    assert states[0] == states[1]


def continued(rank, world, steps, folder):
    """Make some steps of Adam on the workers' mean, continuing from a file. Return the weights."""
    store = create("dist_sync")
    begins = steps[0]
    store.init("w", torch.load(f"{folder}/w") if begins else torch.zeros(4))
    store.set_optimizer("adam", learning_rate=0.1, rescale_grad=1 / world)
    if begins:
        store.load_optimizer_states(f"{folder}/states")
    for step in steps:
        store.push("w", torch.full((4,), step % 3 - 0.5))
    store.pull("w", out := torch.empty(4))
    if rank == 0:
        store.save_optimizer_states(f"{folder}/states", dump_optimizer=True)
        torch.save(out, f"{folder}/w")
    store.barrier()
    return out.tolist()


def test_another_number_of_workers_continues(tmp_path):
    """``rescale_grad`` is one over their number, and is not taken from the file."""
    run(continued, 2, world=2, steps=range(5), folder=str(tmp_path))
    results = run(continued, 3, world=3, steps=range(5, 9), folder=str(tmp_path))
    alone = create("local")
    alone.init("w", torch.zeros(4))
    alone.set_optimizer("adam", learning_rate=0.1)
    for step in range(9):
        alone.push("w", torch.full((4,), step % 3 - 0.5))
    alone.pull("w", out := torch.empty(4))
    assert results == [results[0]] * 3
    assert results[0] == pytest.approx(out.tolist(), rel=1e-5)


# ---- errors ---------------------------------------------------------------------------------------------------


def wrong(rank, what):
    store = create("dist_sync")
    store.init(["a", "b"], [torch.zeros(3), torch.ones(3)])
    store.push(["a", "b"], [torch.ones(3)] * 2)
    try:
        if what == "keys":
            store.push("a" if rank else "b", torch.ones(3))
            store.pull("a", torch.empty(3))  # pushes of single keys are sent now
        elif what == "verbs":
            store.push("a", torch.ones(3), priority=1) if rank else store.barrier()
        elif what == "init":
            store.init("c", torch.ones(3 + rank))
        elif what == "optimizer":
            store.set_optimizer("sgd", learning_rate=0.1 + rank)
        else:
            store.set_gradient_compression({"type": "2bit", "threshold": 1.0 + rank})
    except Exception as error:
        say((type(error).__name__, str(error)))
    out = [torch.empty(3), torch.empty(3)]
    store.pushpull(["a", "b"], [torch.ones(3)] * 2, out)
    return [one.tolist() for one in out]


@pytest.mark.parametrize("what", ["keys", "verbs", "init", "optimizer", "compression"])
def test_workers_with_different_calls_get_an_error_and_go_on(what):
    with Job(wrong, 2, what=what) as job:
        for kind, text in job.results():
            assert kind == "StoreError"
            assert "rank 0: " in text
            assert "rank 1: " in text
        assert job.results() == [[[2.0] * 3] * 2] * 2


def odd_dtypes(rank):
    store = create("dist_sync")
    with pytest.raises(RefusedError, match="workers can sum for key 'a'"):
        store.init(["b", "a"], [torch.zeros(2), torch.zeros(2, dtype=torch.int16)])
    store.init(["b", "c"], [torch.zeros(2), torch.zeros(2, dtype=torch.complex64)])
    store.push(["b", "c"], [torch.ones(2), torch.full((2,), 1j)])
    outs = [torch.empty(2), torch.empty(2, dtype=torch.complex64)]
    store.pull(["b", "c"], outs)
    return [out.tolist() for out in outs]


def test_a_dtype_that_workers_cannot_add_up_is_refused_at_init():
    assert run(odd_dtypes, 2) == [[[2.0, 2.0], [2j, 2j]]] * 2


def changing_rates(rank):
    store, rule = create("dist_sync"), optimizer("sgd", learning_rate=1.0)
    store.init("w", torch.zeros(1))
    store.set_optimizer(rule)
    for rate in (1.0, 10.0, 100.0):
        rule.learning_rate = rate
        store.push("w", torch.ones(1))
    rule.learning_rate = 1000.0
    store.pull("w", out := torch.empty(1))
    return out.item()


def test_a_rate_counts_from_the_next_push_on():
    assert run(changing_rates, 2) == [-222.0] * 2


def one_rate_changes(rank):
    store, rule = create("dist_sync"), optimizer("sgd", learning_rate=1.0)
    store.init("w", torch.zeros(1))
    store.set_optimizer(rule)
    rule.learning_rate = 1.0 + rank
    with pytest.raises(StoreError, match=r"rank 1: push 'w' by .*'learning_rate': 2.0"):
        store.push("w", torch.ones(1))
    rule.learning_rate = 2.0
    store.push("w", torch.ones(1))
    store.pull("w", out := torch.empty(1))
    return out.item()


def test_a_rate_that_one_worker_changes_is_reported():
    assert run(one_rate_changes, 2) == [-4.0] * 2


def failing_updater(rank):
    store = create("dist_sync")
    store.init("a", torch.zeros(3))

    def update(key, merged, stored):
        stored += merged
        raise ArithmeticError(key)

    store.set_updater(update)
    with pytest.raises(ArithmeticError):
        store.push("a", torch.ones(3))
    with pytest.raises(RefusedError, match="shape"):
        store.push("a", torch.ones(4))
    out = torch.empty(3)
    store.pull("a", out)
    return out.tolist()


def test_an_updaters_exception_belongs_to_the_push_and_leaves_no_trace():
    assert run(failing_updater, 2) == [[0.0] * 3] * 2


class UpdateError(Exception):
    """Raised by an updater. Unlike built-in exceptions, it supports weak references."""


def an_updaters_exception_is_freed(rank):
    store = create("dist_sync")
    store.init("a", torch.zeros(3))

    def update(key, merged, stored):
        raise UpdateError(key)

    store.set_updater(update)
    freed = []
    gc.disable()
    try:
        store.push("a", torch.ones(3))
    except UpdateError as error:
        weakref.finalize(error, freed.append, True)
    finally:
        gc.enable()
    return freed


def test_a_caught_exception_of_an_updater_keeps_no_tensors_alive():
    """Its frames refer to the pushed tensors, which a reference cycle would keep until the next collection."""
    assert run(an_updaters_exception_is_freed, 2) == [[True]] * 2


def pushing(rank, timeout, ends=None):
    store = create("dist_sync", timeout=timeout)
    store.init("w", torch.zeros(1 << 18))
    out = torch.empty(1 << 18)
    for step in range(10**9):
        if step == 3:
            say("under way")
            if rank == ends:
                store.close()
                return "closed"
        try:
            store.pushpull("w", torch.ones(1 << 18), out)
        except Exception:
            current = torch.empty(1 << 18)
            store.pull("w", current)
            say(("kept", bool((current == 2).all())))
            raise
    return None


@pytest.mark.parametrize(("how", "timeout"), [("killed", 600), ("stopped", 3), ("closed", 600)])
def test_a_missing_worker_is_named_and_what_is_stored_stays(how, timeout):
    with Job(pushing, 2, timeout=timeout, ends=1 if how == "closed" else None) as job:
        assert job.results() == ["under way"] * 2
        if how != "closed":
            job.kill(1, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        assert job.heard(0) == ("kept", True)
        failure = job.heard(0)
    assert isinstance(failure, Failure)
    assert failure.kind == "StoreError"
    assert failure.ranks == (1,)
    if how == "closed":
        assert "closed" in failure.text


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="together"):
        create("dist_sync", address="127.0.0.1:1")
    with pytest.raises(ValueError, match="timeout"):
        create("dist_sync", timeout=0)
