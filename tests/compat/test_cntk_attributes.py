"""Attributes, seeds, copies and searches of functions are CNTK's. Numbers are of CNTK 2.7 and its own tests."""

from __future__ import annotations

import numpy as np
import pytest

import feedline.cntk as C
from feedline.cntk import random as cr

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.networks.random_numbers import SeededNumbers  # noqa: E402

STATIC = {0: ("ordered", "static", 1), 1: ("ordered", "static", 0)}  # of samples of two axes


# ---- attributes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("padding", "padded"), [([False], [False] * 3), ([False, True], [False, False, True])])
def test_attributes_of_convolutions(padding, padded, transposed):
    x = C.input_variable((1, 5, 5))
    kernel = C.constant(np.reshape(np.array([2, -1, -1, 2], np.float32), (1, 2, 2)))
    f = (C.convolution_transpose if transposed else C.convolution)(kernel, x, auto_padding=padding)
    assert f.root_function.attributes == {
        "autoPadding": padded,
        "sharing": [True, True, True],
        "strides": (1, 1, 1),
        "dilation": (1, 1, 1),
        "maxTempMemSizeInSamples": 0,
        "upperPad": (0, 0, 0),
        "lowerPad": (0, 0, 0),
        "transpose": transposed,
        "outputShape": (0,),
        "kernelShape": (1, 2, 2),
    }


def test_attributes_of_other_operations():
    x, s = C.input_variable((2, 3)), C.sequence.input_variable(3)
    assert C.dropout(x, 0.5, 42).root_function.attributes == {"dropoutRate": 0.5, "rngSeed": 42, "rngOffset": 0}
    assert C.slice(x, 0, 1, 2).root_function.attributes == {
        "endIndex": 2, "beginIndex": 1, "axis": STATIC[0], "sliceStrides": 1,
    }  # fmt: skip
    assert C.slice(x, [0, 1], [1, 0], [2, 2], [-1, 1]).root_function.attributes == {
        "endIndexVec": [2, 2], "beginIndexVec": [1, 0], "axisVec": [STATIC[0], STATIC[1]], "sliceStridesVec": [-1, 1],
    }  # fmt: skip
    assert C.reduce_sum(x, 1).attributes["reductionOpName"] == "Sum"
    assert C.sequence.past_value(s, time_step=2).attributes == {"offset": 2}
    assert cr.normal((2,), mean=1, scale=3, seed=5).attributes["randomDistributionArgs"] == [1.0, 3.0]
    assert C.plus(x, 1).attributes == {}
    assert C.layers.Dense(2)(s).attributes == {}


def test_seeds_of_operations_without_a_seed_are_numbered():
    C.cntk_py.reset_random_seed(17)
    x = C.input_variable(3)
    assert [C.dropout(x, 0.5).attributes["rngSeed"] for _ in range(2)] == [17, 18]


def test_the_dropout_rate_changes_in_networks_that_run_already():
    x, free = C.input_variable(200), C.input_variable((2, C.FreeDimension))
    for data, variable in ((np.ones((3, 200), np.float32), x), (np.ones((3, 2, 50), np.float32), free)):
        z = C.dropout(variable, 0.5, name="drop") * 1

        def zeros(z=z, data=data, variable=variable):
            return float((z.forward({variable: data}, z.outputs, z.outputs)[1][z.output] == 0).mean())

        assert 0.3 < zeros() < 0.7
        z.find_by_name("drop").set_attribute("dropoutRate", 0)
        assert z.find_by_name("drop").attributes["dropoutRate"] == 0
        assert zeros() == 0
        z.find_by_name("drop").set_attribute("dropoutRate", 0.9)
        assert zeros() > 0.7


def test_attributes_that_cannot_be_set():
    x = C.input_variable(3)
    with pytest.raises(ValueError, match="expected 'dropoutRate' or 'rngSeed', got 'rate'"):
        C.dropout(x, 0.5).set_attribute("rate", 0.1)
    with pytest.raises(ValueError, match="expected an operation with the attribute 'rngSeed', got none"):
        C.plus(x, 1).set_attribute("rngSeed", 1)
    f = C.dropout(x, 0.5)
    f.set_attribute("dropoutRate", 3.5)  # as in CNTK
    assert f.root_function.attributes["dropoutRate"] == 3.5
    with pytest.raises(ValueError, match=r"expected a dropout rate of at least 0 and below 1, got 3\.5"):
        f.forward({x: np.ones((1, 3), np.float32)}, f.outputs)


# ---- seeds ----------------------------------------------------------------------------------------

DRAWS = {
    "uniform": lambda n, seed: cr.uniform((n,), seed=seed),
    "normal": lambda n, seed: cr.normal((n,), mean=2, scale=3, seed=seed),
    "gumbel": lambda n, seed: cr.gumbel((n,), seed=seed),
    "bernoulli": lambda n, seed: cr.bernoulli((n,), mean=0.3, seed=seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_equal_seeds_give_equal_numbers(draw):
    first, second, third = draw(256, 9), draw(256, 9), draw(256, 10)
    numbers = first.eval()
    np.testing.assert_array_equal(numbers, second.eval())
    assert (numbers != third.eval()).any()
    np.testing.assert_array_equal(np.concatenate([numbers, first.eval()]), draw(512, 9).eval())
    first.set_attribute("rngSeed", 10)
    np.testing.assert_array_equal(first.eval(), draw(256, 10).eval())


# Seed, and what CNTK 2.7 draws from it on a CPU.
NUMBERS = {
    "uniform": (lambda: cr.uniform((2, 3), seed=98052), [0.931785, 0.814722, 0.479606, 0.937468, 0.004351, 0.185131]),
    "normal": (lambda: cr.normal((2, 3), seed=98052), [1.803254, 0.995395, -0.631974, -1.736721, 0.005615, -0.340025]),
    "gumbel": (lambda: cr.gumbel((2, 3), seed=98052), [-0.987713, -0.522298, 0.425918, -1.019599, 5.435177, 1.586071]),
    "bernoulli": (lambda: cr.bernoulli((2, 3), seed=98052), [1, 1, 0, 1, 0, 0]),
}


@pytest.mark.parametrize(("draw", "numbers"), NUMBERS.values(), ids=NUMBERS)
def test_a_seed_gives_cntks_numbers(draw, numbers):
    np.testing.assert_allclose(draw().eval().ravel(), numbers, atol=6e-7)


def test_dropout_drops_what_cntk_drops():
    """Elements whose uniform number is at most the rate."""
    x = C.input_variable(8)
    data = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    kept = cr.uniform((2, 8), seed=98052).eval() > 0.5
    for f in (C.dropout(x, 0.5, seed=98052), C.layers.Dropout(0.5, seed=98052)(x)):
        np.testing.assert_array_equal(f.forward({x: data}, f.outputs, f.outputs)[1][f.output], 2 * data * kept)


def test_nce_loss_with_a_seed():
    size, classes, batch = 10, 100, 4
    x, y = C.input_variable(size), C.input_variable(classes, is_sparse=True)
    weights = C.parameter((classes, C.InferredDimension), init=C.glorot_uniform(seed=98052))
    biases = C.parameter((classes, 1), init=-np.log(classes))
    loss = C.nce_loss(weights, biases, x, y, np.arange(classes, dtype=np.float32) + 1, seed=98052)
    labels = np.identity(classes, dtype=np.float32)[[10, 20, 30, 40]]
    data = np.arange(batch * size, dtype=np.float32).reshape(batch, size) / (batch * size)
    np.testing.assert_allclose(loss.eval({x: data, y: labels}), [2.385, 3.035, 3.886, 3.868], atol=6e-4)


@pytest.mark.parametrize("how", ["uniform", "normal"])
@pytest.mark.parametrize("count", [1, 150, 999])
def test_random_numbers_go_on_from_their_state(how, count):
    whole, numbers = SeededNumbers(5), SeededNumbers(5)
    expected = getattr(whole, how)(count + 700)
    first = getattr(numbers, how)(count)
    later = SeededNumbers(5, numbers.position)
    np.testing.assert_array_equal(expected, np.concatenate([first, getattr(later, how)(700)]))
    assert later.position == whole.position
    np.testing.assert_array_equal(numbers.uniform(3), SeededNumbers(5, numbers.position - 3).uniform(3))


def test_seeded_numbers_have_their_distribution():
    count = 100_000
    for name, mean, variance in (
        ("uniform", 0.5, 1 / 12),
        ("normal", 2, 9),
        ("gumbel", np.euler_gamma, np.pi**2 / 6),
        ("bernoulli", 0.3, 0.21),
    ):
        numbers = DRAWS[name](count, 98052).eval()
        assert abs(numbers.mean() - mean) < 10 * np.sqrt(variance / count)
        assert abs(numbers.var() / variance - 1) < 0.05


def test_dropout_with_a_seed():
    x, data = C.input_variable(50), np.ones((4, 50), np.float32)

    def dropped(seed):
        f = C.dropout(x, 0.5, seed)
        return f.forward({x: data}, f.outputs, f.outputs)[1][f.output]

    np.testing.assert_array_equal(dropped(3), dropped(3))
    assert set(np.unique(dropped(3))) == {0, 2}
    assert (dropped(3) != dropped(4)).any()
    s = C.sequence.input_variable(50)
    layer = C.layers.Recurrence(lambda h, x: C.dropout(h, 0.5, 3) + x)(s)
    runs = [(f := layer.clone("share")).forward([data], None, f.outputs)[1] for _ in range(2)]
    np.testing.assert_array_equal(*[next(iter(run.values()))[0] for run in runs])


def test_samples_with_a_seed():
    weights, identity = np.arange(10, dtype=np.float32), np.identity(10)

    def samples(*seed):
        return C.times(C.random_sample(weights, 5, False, *seed), identity).eval()

    np.testing.assert_array_equal(samples(123), samples(123))
    assert (samples(123) != samples(124)).any()
    for bad in ([1.0, -1.0], [0.0, 0.0]):
        for function in (C.random_sample, C.random_sample_inclusion_frequency):
            with pytest.raises(ValueError, match="expected weights of at least 0, with a sum above 0"):
                function(np.float32(bad), 1, True).eval()
    for seed in ([], [3]):
        with pytest.raises(ValueError, match=r"at least 2 classes with a weight above 0 .* got 1"):
            C.random_sample(np.float32([1, 0, 0]), 2, False, *seed).eval()
    with pytest.raises(ValueError, match="at least one sample to draw, not 0"):
        C.random_sample_inclusion_frequency(weights, 0, False)


def test_a_file_keeps_the_seed(tmp_path):
    f = C.combine([draw(20, 5) for draw in DRAWS.values()])
    expected = list(f.eval().values())
    for format in (None, C.ModelFormat.CNTKv2):
        f.save(str(tmp_path / "f"), format)
        for numbers, loaded in zip(expected, C.load_model(str(tmp_path / "f")).eval().values(), strict=True):
            np.testing.assert_array_equal(numbers, loaded)


def test_a_file_holds_settings_of_numpy(tmp_path):
    half = np.float32(0.5)
    draws = [cr.uniform((4,), low=half, high=np.array(2), seed=1), cr.bernoulli((4,), mean=half, seed=1)]
    draws += [cr.normal((4,), mean=half, scale=half, seed=1), cr.gumbel((4,), loc=half, scale=half, seed=1)]
    x = C.input_variable(4, is_sparse=np.bool_(True))
    f = C.combine([*draws, C.times(x, np.identity(4, np.float32))])
    f.save(str(tmp_path / "f"))
    loaded = C.load_model(str(tmp_path / "f"))
    assert loaded.arguments[0].is_sparse is True
    for drawn, again in zip(draws, loaded.outputs[:4], strict=True):
        np.testing.assert_array_equal(drawn.eval(), again.owner.eval())


def test_a_checkpoint_continues_seeded_dropout(tmp_path):
    x, y = C.input_variable(30), C.input_variable(1)
    data = {x: np.ones((4, 30), np.float32), y: np.zeros((4, 1), np.float32)}

    def trainer():
        z = C.layers.Dense(1, init=0.1)(C.dropout(x, 0.5, seed=7))
        return C.Trainer(z, C.squared_error(z, y), [C.sgd(z.parameters, C.learning_parameter_schedule(0.01))])

    def losses(trainer, count):
        found = []
        for _ in range(count):
            trainer.train_minibatch(data)
            found.append(trainer.previous_minibatch_loss_average)
        return found

    first = trainer()
    losses(first, 3)
    first.save_checkpoint(str(tmp_path / "t"))
    expected = losses(first, 3)
    second = trainer()
    second.restore_from_checkpoint(str(tmp_path / "t"))
    assert losses(second, 3) == expected
    assert len(set(expected)) == 3


def test_learners_draw_different_noise_and_restore_it():
    def learner():
        w = C.parameter((20, 20), init=1)
        rate, momentum = C.learning_parameter_schedule_per_sample(0.5), C.momentum_schedule(0.99)
        return w, C.momentum_sgd([w], rate, momentum, gaussian_noise_injection_std_dev=0.5)

    (w1, first), (w2, second), (w3, third) = learner(), learner(), learner()
    gradient = np.ones((20, 20), np.float32)
    for _ in range(3):
        checkpoint = first.create_checkpoint()
        first.update({w1: gradient}, 1)
        second.update({w2: gradient}, 1)
        assert not np.allclose(w1.value, w2.value)
        third.restore_from_checkpoint(checkpoint)
        third.update({w3: gradient}, 1)
        np.testing.assert_array_equal(w1.value, w3.value)


# ---- copies ---------------------------------------------------------------------------------------


def test_a_copy_reads_its_own_output():
    """Decoders are trained on the labels before, and copied to run on what they have computed before."""
    x, y = (C.sequence.input_variable(1, name=name) for name in "xy")
    hook = C.alias(y, name="hook")
    model = C.sequence.past_value(hook) * 2 + x
    copy = model.clone(C.CloneMethod.share, {hook.output: C.round(model).output})
    assert [v.name for v in copy.arguments] == ["x"]
    assert {v.name for v in model.arguments} == {"x", "y"}
    (result,) = copy.eval([np.ones((3, 1), np.float32)])
    assert result.ravel().tolist() == [1, 3, 7]


def test_a_replacement_for_the_whole_function_stays_itself():
    """The number is CNTK's: 2 * 1 + 2, and 3 more."""
    x, arg = C.input_variable(1), C.placeholder()
    block = C.as_block(C.times(arg, C.parameter((1, 1), init=1)) + C.parameter((1,), init=2), [(arg, x)], "dense")
    more = block + C.parameter((1,), init=3)
    copy = block.clone("share", {block: more})
    assert copy.root_function.uid == more.root_function.uid
    assert copy.eval({x: [np.float32([2])]}).tolist() == [[7]]


def test_frozen_copies_have_constants_of_their_own():
    x = C.input_variable(2, name="x")
    w, c = C.parameter((2,), init=3), C.constant(np.float32([1, 2]))
    z = x * w + c
    frozen, shared = z.clone("freeze"), z.clone("share")
    c.value = np.float32([10, 20])
    w.value = np.float32([0, 0])
    assert frozen.eval([[1, 1]]).tolist() == [[4, 5]]
    assert shared.eval([[1, 1]]).tolist() == [[10, 20]]
    assert frozen.parameters == ()


def test_copies_have_inputs_of_their_own():
    x, p = C.input_variable(2, name="x"), C.placeholder(name="p")
    z = x + p
    for method in ("freeze", "clone", "share"):
        copy = z.clone(method)
        assert [v.name for v in copy.arguments] == ["x", "p"]
        assert not {v.uid for v in copy.arguments} & {x.uid, p.uid}
    assert z.clone("share", {x: x}).arguments[0] == x


# ---- the graph ------------------------------------------------------------------------------------


def _graph():
    i1 = C.input_variable((2, 3), name="i1")
    op1 = C.plus(i1, C.constant(6, (2, 3), name="c1"), name="op1")
    op2 = C.times(op1, C.parameter((3, 2), init=7, name="p1"), name="op2")
    minus = C.minus(C.input_variable((), name="label"), C.constant(1, name="c2"), name="minus")
    return C.combine([op2, minus], name="all")


@pytest.mark.parametrize("depth", [-1, 0, 1, 5])
def test_a_search_begins_with_the_combination(depth):
    z = _graph()
    names = [v.name for v in C.logging.graph.depth_first_search(z, lambda x: True, depth)]
    assert names == ["all", "op2", "op1", "i1", "c1", "p1", "minus", "label", "c2"]
    assert (z.name, z.op_name) == ("all", "Combine")
    assert z.find_by_name("all") is z
    assert C.logging.graph.find_by_name(z, "all") is z
    outputs = C.logging.graph.get_node_outputs(z)
    assert [output.name for output in outputs] == ["op2", "minus", "op2", "op1", "minus"]


def test_the_text_of_a_graph_has_cntks_names():
    z = _graph()
    lines = C.logging.graph.plot(z).split("\n\n")
    assert [line.partition("(")[0] for line in lines] == ["Minus", "Plus", "Times", "Combine", "Combine"]
    i1 = z.find_by_name("i1")
    assert i1.uid.startswith("Input")
    assert z.find_by_name("op1").uid + "_Output_0" == z.find_by_name("op1").output.uid
    assert lines[1] == f"Plus({i1.uid}, {z.find_by_name('c1').uid}) -> {z.find_by_name('op1').output.uid};"
    assert z.find_by_uid(i1.uid) == i1
    assert z.find_by_uid(z.find_by_name("op2").uid).name == "op2"


def test_texts_of_functions():
    x, s = C.input_variable(13, name="x"), C.sequence.input_variable((3, 2), name="s")
    assert str(C.log(x, name="f")) == "f: Log(x: Tensor[13]) -> Tensor[13]"
    assert str(C.exp(x + 1)) == "Composite(x: Tensor[13]) -> Tensor[13]"
    assert str(C.relu(s)) == "ReLU(s: Sequence[Tensor[3,2]]) -> Sequence[Tensor[3,2]]"
    assert str(C.exp(x + 1).root_function) == "Exp(Tensor[13]) -> Tensor[13]"


# ---- binary files ---------------------------------------------------------------------------------


def test_a_definition_of_a_stream_that_a_binary_file_lacks_is_passed_over(tmp_path, caplog):
    from feedline.cntk import ctf2bin

    text = tmp_path / "data.txt"
    text.write_text("|S0 1 2 |S1 3\n|S0 4 5 |S1 6\n", "utf-8")
    header = ["features S0 dense 2", "labels S1 dense 1"]
    streams = C.io.StreamDefs(features=C.io.StreamDef(field="S0", shape=2), labels=C.io.StreamDef(field="S1", shape=1))
    ctf2bin.process(str(text), str(tmp_path / "data.bin"), header, ctf2bin.ElementType.FLOAT)
    source = C.io.MinibatchSource(C.io.CBFDeserializer(str(tmp_path / "data.bin"), streams), randomize=False)
    assert sorted(info.name for info in source.stream_infos()) == ["features", "labels"]
    batch = source.next_minibatch(2)
    assert batch[source["features"]].asarray().reshape(2, 2).tolist() == [[1, 2], [4, 5]]
    assert "no stream 'S0', so its definition is passed over" in caplog.text
