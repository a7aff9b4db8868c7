"""Settings under CNTK's names in each form in which scripts pass them: tuples, lists, NumPy arrays and numbers.

Every public function with a setting has a case, in which its settings are tuples and Python's numbers. In any other
form it must make the same graph, schedule, initializer or learner.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk._settings import SETTINGS  # noqa: E402
from feedline.networks.traverse import topological  # noqa: E402

MODULES = {
    "": [C.ops, C.layers, C.layers.models, C.learners, C.losses, C.metrics, C.initializer],
    "sequence.": [C.sequence],
    "random.": [C.random],
}


def picture():
    return C.input_variable((4, 8, 8), name="x")


def vector():
    return C.input_variable(8, name="v")


def sequences():
    return C.sequence.input_variable(8, name="s")


def weights():
    return [C.parameter(3, init=1.0)]


KERNEL, BOX, AXIS = (4, 4, 3, 3), {"strides": (2, 1), "pad": (True, False)}, {"axis": 1}
WINDOW = {"filter_shape": (3, 3), "num_filters": 4, "reduction_rank": 1, "dilation": (1, 1), **BOX}
LINE = {**WINDOW, "filter_shape": (3,), "strides": (2,), "pad": (True,), "dilation": (1,)}
CUBE = {**WINDOW, "filter_shape": (3, 3, 3), "strides": (1, 2, 1), "pad": (True, True, False), "dilation": (1, 1, 1)}
RANKS = {"output_rank": 1, "filter_rank": 2, "seed": 3}
SHARED = {"minibatch_size": 32, "epoch_size": 64}
MOMENTA = {"lr": [0.5, 0.25], "momentum": [0.5, 0.25], **SHARED}


def reductions():
    names = ["sum", "mean", "max", "min", "prod", "log_sum_exp", "l1", "l2", "sum_square"]
    return {f"reduce_{n}": (lambda: [picture()], {"axis": (0, 2), "keepdims": False}) for n in names}


#: Positional arguments, which are not settings, and settings, by name.
CASES = {
    "Axis": (list, {"axis": 2}),
    "Constant": (lambda: [1.0], {"shape": (2, 3)}),
    "Parameter": (list, {"shape": (2, 3)}),
    "Variable": (list, {"shape": (2, 3)}),
    "constant": (lambda: [1.0], {"shape": (2, 3)}),
    "parameter": (list, {"shape": (2, 3)}),
    "input": (list, {"shape": (2, 3)}),
    "input_variable": (list, {"shape": (2, 3)}),
    "output_variable": (
        list,
        {"shape": (2, 3), "dtype": np.float32, "dynamic_axes": [C.Axis.default_batch_axis()]},
    ),
    "placeholder": (list, {"shape": (2, 3)}),
    "placeholder_variable": (list, {"shape": (2, 3)}),
    "sequence.input": (list, {"shape": (2, 3)}),
    "sequence.input_variable": (list, {"shape": (2, 3)}),
    # operations
    "argmax": (lambda: [picture()], AXIS),
    "argmin": (lambda: [picture()], AXIS),
    "classification_error": (lambda: [vector(), vector()], {"axis": -1, "topN": 2}),
    "convolution": (
        lambda: [C.parameter(KERNEL, name="K"), picture()],
        {
            "strides": (2, 1),
            "sharing": (True, True),
            "auto_padding": (True, False),
            "dilation": (1, 1),
            "reduction_rank": 1,
            "groups": 1,
        },
    ),
    "convolution_transpose": (
        lambda: [C.parameter(KERNEL, name="K"), picture()],
        {
            "strides": (2, 2),
            "sharing": (True,),
            "auto_padding": (True, True),
            "output_shape": (4, 16, 16),
            "dilation": (1,),
            "reduction_rank": 1,
        },
    ),
    "cosine_distance_with_negative_samples": (lambda: [vector(), vector()], {"shift": 1, "num_negative_samples": 2}),
    "crop_manual": (
        lambda: [picture(), C.input_variable((4, 2, 2), name="y")],
        {"offset_x": 1, "offset_y": 2},
    ),
    "cross_entropy_with_softmax": (lambda: [vector(), vector()], {"axis": -1}),
    "depth_to_space": (lambda: [picture()], {"block_size": 2}),
    "dropout": (lambda: [picture()], {"dropout_rate": 0.5, "seed": 4}),
    "edit_distance_error": (lambda: [sequences(), sequences()], {"tokensToIgnore": (1, 2)}),
    "expand_dims": (lambda: [picture()], AXIS),
    "flatten": (lambda: [picture()], AXIS),
    "gather": (lambda: [picture(), C.input_variable(2, name="i")], {"axis": 0}),
    "local_response_normalization": (lambda: [picture()], {"depth_radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75}),
    "log_softmax": (lambda: [picture()], AXIS),
    "one_hot": (lambda: [C.input_variable((), name="i")], {"num_classes": 5, "axis": -1}),
    "optimized_rnnstack": (
        lambda: [sequences(), C.parameter((-1, 1), name="W")],
        {"hidden_size": 3, "num_layers": 2},
    ),
    "pad": (lambda: [picture()], {"pattern": ((0, 0), (1, 2), (2, 1))}),
    "pooling": (
        lambda: [picture(), C.MAX_POOLING],
        {"pooling_window_shape": (2, 2), "strides": (2, 2), "auto_padding": (True, False)},
    ),
    "random_sample": (lambda: [np.arange(1.0, 5.0)], {"num_samples": 2, "allow_duplicates": True, "seed": 3}),
    "random_sample_inclusion_frequency": (
        lambda: [np.arange(1.0, 5.0)],
        {"num_samples": 2, "allow_duplicates": True, "seed": 3},
    ),
    "reshape": (lambda: [picture()], {"shape": (8, 4), "begin_axis": 0, "end_axis": 2}),
    "roipooling": (
        lambda: [picture(), C.input_variable((2, 4), name="r"), C.MAX_POOLING],
        {"roi_output_shape": (3, 3), "spatial_scale": 1.0},
    ),
    "slice": (
        lambda: [picture()],
        {"axis": (1, 2), "begin_index": (0, 1), "end_index": (4, 0), "strides": (2, 1)},
    ),
    "softmax": (lambda: [picture()], AXIS),
    "space_to_depth": (lambda: [picture()], {"block_size": 2}),
    "splice": (lambda: [picture(), picture()], {"axis": 1}),
    "squeeze": (lambda: [C.input_variable((1, 3, 1), name="x")], {"axes": (0, 2)}),
    "swapaxes": (lambda: [picture()], {"axis1": 0, "axis2": 2}),
    "times": (
        lambda: [picture(), C.parameter((8, 8, 2, 3), name="W")],
        {"output_rank": 2, "infer_input_rank_to_map": 1},
    ),
    "top_k": (lambda: [vector()], {"k": 3, "axis": -1}),
    "transpose": (lambda: [picture()], {"perm": (2, 0, 1)}),
    "unpooling": (
        lambda: [C.input_variable((4, 4, 4), name="p"), picture(), C.MAX_UNPOOLING],
        {"unpooling_window_shape": (2, 2), "strides": (2, 2), "auto_padding": (False, False)},
    ),
    **reductions(),
    "nce_loss": (
        lambda: [C.parameter((4, 8), name="W"), C.parameter((4, 1), name="b"), vector(), C.input_variable(4)],
        {"noise_distribution": np.ones(4), "num_samples": 2, "seed": 3},
    ),
    "sequence.delay": (lambda: [sequences()], {"time_step": 2}),
    "sequence.future_value": (lambda: [sequences()], {"time_step": 2}),
    "sequence.past_value": (lambda: [sequences()], {"time_step": 2}),
    "sequence.slice": (lambda: [sequences()], {"begin_index": 1, "end_index": -1}),
    **{f"random.{n}": (list, {"shape": (2, 3), "seed": 5}) for n in ["uniform", "normal", "gumbel", "bernoulli"]},
    **{f"random.{n}_like": (lambda: [vector()], {"seed": 5}) for n in ["uniform", "normal", "gumbel", "bernoulli"]},
    # layers
    "AttentionModel": (list, {"attention_dim": 4, "attention_span": 3, "attention_axis": -3}),
    "AveragePooling": (list, {"filter_shape": (2, 2), **BOX}),
    "BatchNormalization": (list, {"map_rank": 1}),
    "Convolution": (list, {**WINDOW, "groups": 1, "sharing": True}),
    "Convolution1D": (list, LINE),
    "Convolution2D": (list, {**WINDOW, "groups": 1}),
    "Convolution3D": (list, {**CUBE, "groups": 1}),
    "ConvolutionTranspose": (list, {**WINDOW, "output_shape": (16, 8), "sharing": True}),
    "ConvolutionTranspose1D": (list, {**LINE, "output_shape": (16,)}),
    "ConvolutionTranspose2D": (list, {**WINDOW, "output_shape": (16, 8)}),
    "ConvolutionTranspose3D": (list, {**CUBE, "output_shape": (8, 16, 8)}),
    "Delay": (list, {"T": 2}),
    "Dense": (list, {"shape": (2, 3), "input_rank": 2}),
    "Dense, mapped": (list, {"shape": (2, 3), "map_rank": 1}),
    "Dropout": (list, {"dropout_rate": 0.5, "seed": 3}),
    "Dropout, kept": (list, {"keep_prob": 0.5, "seed": 3}),
    "Embedding": (list, {"shape": (3,)}),
    "GRU": (list, {"shape": (3,), "cell_shape": (3,)}),
    "LSTM": (list, {"shape": (3,), "cell_shape": (5,)}),
    "MaxPooling": (list, {"filter_shape": (2, 2), **BOX}),
    "MaxUnpooling": (list, {"filter_shape": (2, 2), "strides": (2, 2), "pad": (False, False)}),
    "PastValueWindow": (list, {"window_size": 2, "axis": -1}),
    "RNNStep": (list, {"shape": (3,), "cell_shape": (5,)}),
    "RNNUnit": (list, {"shape": (3,), "cell_shape": (5,)}),
    "SequentialConvolution": (list, {**WINDOW, "groups": 1, "sharing": True}),
    # initializers
    "bilinear": (list, {"kernel_width": 3, "kernel_height": 2}),
    **{
        n: (lambda: [0.5], RANKS)
        for n in ["glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "normal", "xavier"]
    },
    "initializer_with_rank": (lambda: [C.glorot_uniform(seed=1)], {"output_rank": 1, "filter_rank": 2}),
    "truncated_normal": (lambda: [0.5], {"seed": 3}),
    "uniform": (lambda: [0.5], {"seed": 3}),
    # schedules and learners
    "learning_parameter_schedule": (list, {"schedule": [0.5, 0.25], **SHARED}),
    "learning_parameter_schedule_per_sample": (list, {"schedule": [(2, 0.5), (1, 0.25)], "epoch_size": 64}),
    "learning_rate_schedule": (
        list,
        {"lr": [0.5, 0.25], "unit": C.learners.UnitType.sample, "epoch_size": 64},
    ),
    "momentum_as_time_constant_schedule": (list, {"momentum": [100, 200], "epoch_size": 64}),
    "momentum_schedule": (list, {"momentum": [0.5, 0.25], **SHARED}),
    "momentum_schedule_per_sample": (list, {"momentum": [0.5, 0.25], "epoch_size": 64}),
    "training_parameter_schedule": (list, {"schedule": [0.5, 0.25], "epoch_size": 64}),
    "adadelta": (lambda: [weights()], {"lr": [0.5, 0.25], **SHARED}),
    "adagrad": (lambda: [weights()], {"lr": [0.5, 0.25], **SHARED}),
    "adam": (lambda: [weights()], {**MOMENTA, "variance_momentum": [0.5, 0.25]}),
    "fsadagrad": (lambda: [weights()], {**MOMENTA, "variance_momentum": [0.5, 0.25]}),
    "momentum_sgd": (lambda: [weights()], MOMENTA),
    "nesterov": (lambda: [weights()], MOMENTA),
    "rmsprop": (
        lambda: [weights()],
        {"lr": [0.5, 0.25], "gamma": 0.9, "inc": 1.5, "dec": 0.5, "max": 10.0, "min": 0.1, **SHARED},
    ),
    "sgd": (lambda: [weights()], {"lr": [0.5, 0.25], **SHARED}),
}

#: Classes that scripts do not construct.
MADE_BY_FUNCTIONS = {"Learner", "UserLearner"}


def function_of(case):
    name = case.partition(",")[0]
    prefix = f"{name.partition('.')[0]}." if "." in name else ""
    names = [m for m in MODULES[prefix] if name.removeprefix(prefix) in m.__all__]
    return getattr(names[0], name.removeprefix(prefix))


def settings_of(function):
    try:
        return SETTINGS & set(inspect.signature(function).parameters)
    except ValueError:  # enumerations
        return set()


@pytest.mark.parametrize("prefix", MODULES)
def test_every_function_with_a_setting_has_a_case(prefix):
    listed = {}
    for case, (_, settings) in CASES.items():
        listed.setdefault(case.partition(",")[0], set()).update(settings)
    missing = {}
    for module in MODULES[prefix]:
        for name in set(module.__all__) - MADE_BY_FUNCTIONS:
            function = getattr(module, name, None)
            lacking = settings_of(function) - listed.get(prefix + name, set()) if callable(function) else set()
            if lacking and not (prefix == "" and function is getattr(C.sequence, name, None)):
                missing[name] = lacking
    assert not missing


def forms(value):
    """Return the value in other forms."""
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [np.int64(value), np.int32(value), np.array(value)]
    if isinstance(value, float):
        return [np.float64(value), np.float32(value), np.array(value)]
    if isinstance(value, list):  # a schedule
        each = [np.float32(v) if isinstance(v, (int, float)) else (np.int64(v[0]), np.float64(v[1])) for v in value]
        return [each] if isinstance(value[0], tuple) else [each, np.array(value)]
    if isinstance(value[0], tuple):
        return [
            list(map(list, value)),
            np.array(value),
            tuple(map(np.array, value)),
            [list(map(np.int64, v)) for v in value],
        ]
    return [list(value), np.array(value), tuple(map(type(np.array(value)[0]), value))]


def fingerprint(result):
    """Return what a function made, with the types of its settings."""
    if isinstance(result, C.Function):
        nodes = topological([v.node for v in result.outputs])
        number = {node: i for i, node in enumerate(nodes)}
        return [
            (n.op, sorted((k, repr(v)) for k, v in n.attributes.items()), str(n.type), [number[i] for i in n.inputs])
            for n in nodes
        ]
    if isinstance(result, C.learners.Learner):
        return repr((result.modern, result.create_checkpoint(), result.minibatch_size))
    if isinstance(result, C.initializer.Initializer):
        return [repr(v) for k, v in sorted(vars(result).items()) if k != "draw"], result((3, 2, 3)).tolist()
    if isinstance(result, C.Variable):
        return result.shape
    return repr(result)


@pytest.mark.filterwarnings("ignore:CNTK 2.2 deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_forms_of_settings_make_the_same(case):
    operands, settings = CASES[case]
    made_by = function_of(case)

    def function(*args, **kwargs):
        C.cntk_py.reset_random_seed(1)  # random operations and learners without a seed are numbered
        return made_by(*args, **kwargs)

    operands = operands()
    expected = fingerprint(function(*operands, **settings))
    parameters = inspect.signature(made_by).parameters.values()
    positions = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][len(operands) :]
    for name in settings_of(made_by) & set(settings):
        for value in forms(settings[name]):
            changed = {**settings, name: value}
            assert fingerprint(function(*operands, **changed)) == expected, (name, value)
            before = positions[: positions.index(name) + 1] if name in positions else []
            if before and set(before) <= set(changed):  # by position too
                others = {n: v for n, v in changed.items() if n not in before}
                assert fingerprint(function(*operands, *(changed[n] for n in before), **others)) == expected
