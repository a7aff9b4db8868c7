"""Functions of the façade of CNTK for files in other formats: each operation at odd shapes, and data for it.

Data of sequences is a list of arrays, all of one length, as ONNX has no ragged tensors, unless a case differs.
"""

from __future__ import annotations

import numpy as np

import feedline.cntk as C
from feedline.cntk import layers

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.normal(size=shape).astype("f4")


def weights(*shape):
    return C.parameter(init=normal(*shape))


X, Y, V = normal(5, 3, 4), normal(5, 3, 4), normal(5, 4)
IMAGES, LINES, CUBES = normal(2, 3, 7, 9), normal(2, 3, 11), normal(2, 2, 5, 4, 6)
STEPS = [normal(4, 3) for _ in range(3)]
MATRICES = [normal(4, 2, 3) for _ in range(3)]
PICTURES = [normal(2, 2, 5, 6) for _ in range(3)]
PER_SEQUENCE = normal(3, 3)

UNARY = [
    "abs",
    "acos",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "element_not",
    "exp",
    "floor",
    "hardmax",
    "negate",
    "reciprocal",
    "relu",
    "round",
    "sigmoid",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "stop_gradient",
    "tan",
    "tanh",
]
BINARY = [
    "binary_cross_entropy",
    "classification_error",
    "cosine_distance",
    "cross_entropy_with_softmax",
    "element_and",
    "element_divide",
    "element_max",
    "element_min",
    "element_or",
    "element_times",
    "element_xor",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log_add_exp",
    "minus",
    "not_equal",
    "plus",
    "pow",
    "squared_error",
]


def _x():
    return C.input_variable((3, 4), name="x")


def _y():
    return C.input_variable((3, 4), name="y")


def _image():
    return C.input_variable((3, 7, 9), name="image")


def _steps():
    return C.sequence.input_variable(3, name="steps")


def of_x(make):
    return lambda: (make(_x()), {"x": X})


def of_two(make):
    return lambda: (make(_x(), _y()), {"x": X, "y": Y})


def of_vector(make):
    return lambda: (make(C.input_variable(4, name="v")), {"v": V})


def of_image(make):
    return lambda: (make(_image()), {"image": IMAGES})


def of_steps(make):
    return lambda: (make(_steps()), {"steps": STEPS})


def of_both(make):
    """A sequence, and one sample for each."""
    return lambda: (
        make(_steps(), C.input_variable(3, name="one")),
        {"steps": STEPS, "one": PER_SEQUENCE},
    )


def _unary(name):
    def make(x):
        return getattr(C, name)(C.clip(x, -0.9, 0.9) if name in ("acos", "asin", "atanh") else x, name="result")

    return of_x(make)


def _binary(name):
    def make(x, y):
        return getattr(C, name)(C.abs(x), C.abs(y) * 0.3, name="result")

    return of_two(make)


def _double():
    x = C.input_variable((2, 3), dtype=np.float64, name="x")
    w = C.parameter(init=RNG.normal(size=(3, 2)), dtype=np.float64)
    return C.softmax(C.times(x, w) * 2.5 + C.constant(1.0, dtype=np.float64)), {"x": RNG.normal(size=(4, 2, 3))}


def _two_back(steps):
    """A recurrence that reads its last but one state, and one for each sequence."""
    h = C.placeholder((2,), steps.dynamic_axes, name="h")
    new = C.tanh(C.times(steps, weights(3, 2)) + C.times(C.sequence.past_value(h, 0.25, 2), weights(2, 2)))
    return new.replace_placeholders({h: new.output})


def _told(steps, one):
    """A step that reads the state, a sample of each sequence, and a parameter. The initial state is a sample, too."""
    first = C.times(one, weights(3, 2))
    add, factor = C.times(one, weights(3, 2)), weights(2, 2)

    def step(h, x):
        return C.sigmoid(C.times(x, weights_of_x) + C.times(h, factor) + add)

    weights_of_x = weights(3, 2)
    return layers.Recurrence(step, initial_state=first)(steps)


def _images_of_steps():
    x = C.sequence.input_variable((2, 5, 6), name="pictures")
    y = layers.Convolution2D((3, 2), 4, pad=True, init=C.normal(0.5))(x)
    return layers.MaxPooling((2, 2), 2)(C.relu(y)), {"pictures": PICTURES}


def _index(x):
    return C.round(C.reduce_sum(x * 0) + C.constant(np.array([1.0, 3.0], "f4")))


def _trained(make):
    """A layer whose running statistics differ from their initial values."""

    def built():
        x = _image()
        z = make(x)
        for p, q in zip(z.parameters, (1.5, -0.5), strict=False):
            p.value = np.full(p.shape, q, "f4")
        for c in z.constants:
            if c.shape:
                c.value = RNG.uniform(0.5, 2, c.shape).astype("f4")
        return z, {"image": IMAGES}

    return built


CASES = {
    **{name: _unary(name) for name in UNARY},
    "log": of_x(lambda x: C.log(C.abs(x))),
    "log of little": of_x(lambda x: C.log(x * 0)),
    "reciprocal of zero": of_x(lambda x: C.reciprocal(x * 0) + x / C.relu(x)),
    **{name: _binary(name) for name in BINARY},
    "elu": of_x(lambda x: C.elu(x, 0.7)),
    "selu": of_x(C.selu),
    "leaky relu": of_x(lambda x: C.leaky_relu(x, 0.2)),
    "param relu": of_x(lambda x: C.param_relu(weights(3, 1), x)),
    "hard sigmoid": of_x(lambda x: C.hard_sigmoid(x, 0.3, 0.4)),
    "clip": of_x(lambda x: C.clip(x, -0.5, 0.25)),
    "select": of_two(lambda x, y: C.element_select(C.relu(x), y, 2)),
    "softmax": of_x(C.softmax),
    "softmax along": of_x(lambda x: C.softmax(x, 0)),
    "softmax of vectors": of_vector(lambda v: C.softmax(v)),
    "log softmax": of_x(lambda x: C.log_softmax(x * 40, 0)),
    "cast": of_x(lambda x: C.cast(x, "float64")),
    "ones like": of_x(C.ones_like),
    "double": _double,
    "rank 0": of_vector(lambda v: C.exp(C.reduce_sum(v)) * 2),
    "broadcast": of_x(lambda x: x + C.slice(x, 0, 0, 1) * weights(4) - weights(2, 3, 4)),
    "transpose": of_image(lambda i: C.transpose(i, (2, 0, 1))),
    "swapaxes": of_image(lambda i: C.swapaxes(i, 0, 2)),
    "slice": of_image(lambda i: C.slice(i, [0, 2], [1, -4], [0, -1], [1, 2])),
    "slice backwards": of_image(lambda i: i[:, ::-1]),
    "slice backwards by two": of_image(lambda i: C.slice(i, 2, 1, 8, -2)),
    "reshape": of_image(lambda i: C.reshape(i, (9, 7), 1, 3)),
    "reshape whole": of_image(lambda i: C.reshape(i, (-1,))),
    "expand dims": of_image(lambda i: C.expand_dims(i, 1)),
    "squeeze": of_image(lambda i: C.squeeze(C.reduce_sum(i, 1))),
    "flatten": of_image(lambda i: C.flatten(i, 1)),
    "splice": of_image(lambda i: C.splice(i, i * 2, axis=1)),
    "splice to a new axis": of_image(lambda i: C.splice(i, i + 1, axis=C.Axis.new_leading_axis())),
    "splice with a parameter": of_x(lambda x: C.splice(x, weights(2, 4), axis=0)),
    "pad": of_image(lambda i: C.pad(i, [(0, 1), (2, 0), (1, 1)], constant_value=3)),
    "pad by reflection": of_image(lambda i: C.pad(i, [(0, 1), (2, 0), (1, 1)], C.REFLECT_PAD)),
    "pad symmetrically": of_image(lambda i: C.pad(i, [(0, 1), (2, 0), (1, 3)], C.SYMMETRIC_PAD)),
    "top k": of_image(lambda i: C.top_k(i, 2)),
    "top k along": of_image(lambda i: C.top_k(i, 2, axis=0)),
    "gather": of_x(lambda x: C.gather(weights(5, 6, 4), _index(x))),
    "gather along": of_x(lambda x: C.gather(weights(5, 6, 4), _index(x), axis=1)),
    "gather from samples": of_x(lambda x: C.gather(x, C.constant(np.array([2.0, 0.0], "f4")))),
    "one hot": of_x(lambda x: C.one_hot(_index(x), 4)),
    "one hot along": of_x(lambda x: C.one_hot(_index(x), 4, axis=0)),
    "space to depth": of_image(lambda i: C.space_to_depth(C.slice(i, [-2, -1], [0, 0], [6, 8]), 2)),
    "crop": of_image(lambda i: C.crop_manual(i, i[:, :3, :4], 2, 1)),
    "eye": of_vector(lambda v: C.eye_like(v, sparse_output=False)),
    "times": of_vector(lambda v: C.times(v, weights(4, 3))),
    "times of tensors": of_image(lambda i: C.times(i, weights(9, 4, 2), output_rank=2)),
    "times over two axes": of_image(lambda i: C.times(i, weights(7, 9, 2))),
    "times of samples": of_two(lambda x, y: C.times(x, C.swapaxes(y))),
    "times of a parameter": of_x(lambda x: C.times(weights(2, 3), x)),
    "times transpose": of_image(lambda i: C.times_transpose(i, weights(5, 9))),
    "times transpose of a vector": of_x(lambda x: C.times_transpose(x, weights(4))),
    "times transpose of samples": of_two(C.times_transpose),
    "a free dimension": lambda: (
        C.softmax(C.times(C.tanh(C.input_variable((C.FreeDimension, 3), name="free")), weights(3, 4)), -1),
        {"free": normal(2, 5, 3)},
    ),
    "dense": of_image(lambda i: layers.Dense((2, 3), activation=C.tanh, init=C.normal(0.3), name="layer")(i)),
    "reduce sum": of_image(lambda i: C.reduce_sum(i, [0, 2])),
    "reduce log sum": of_image(lambda i: C.reduce_log_sum_exp(i, 1)),
    "reduce mean": of_image(C.reduce_mean),
    "reduce product": of_image(lambda i: C.reduce_prod(i, 0)),
    "reduce maximum": of_image(lambda i: C.reduce_max(i, -1)),
    "reduce minimum": of_image(C.reduce_min),
    "reduce l1": of_image(lambda i: C.reduce_l1(i, 1)),
    "reduce l2": of_image(C.reduce_l2),
    "reduce squares": of_image(lambda i: C.reduce_sum_square(i, (0, 1))),
    "reduce batch": of_image(lambda i: C.reduce_mean(i, C.Axis.default_batch_axis())),
    "reduce batch and an axis": of_image(lambda i: C.reduce_sum(i, [C.Axis.default_batch_axis(), 1])),
    "reduce squares of the batch": of_image(lambda i: C.reduce_l2(i, C.Axis.default_batch_axis())),
    "reduce everything": of_image(lambda i: C.reduce_max(i, C.Axis.all_axes())),
    "argmax": of_image(lambda i: C.argmax(i, 1)),
    "argmin of all": of_image(C.argmin),
    "cross entropy of vectors": of_vector(lambda v: C.cross_entropy_with_softmax(v * 30, C.softmax(v))),
    "cross entropy along": of_two(lambda x, y: C.cross_entropy_with_softmax(x, C.softmax(y, 0), axis=0)),
    "error of vectors": of_vector(lambda v: C.classification_error(v, C.hardmax(C.softmax(v) + C.abs(v)))),
    "error along": of_two(lambda x, y: C.classification_error(x, y, axis=0)),
    "weighted binary": of_vector(
        lambda v: C.weighted_binary_cross_entropy(C.sigmoid(v[0]), C.greater(v[1], 0), C.abs(v[2]) + 1)
    ),
    "dropout": of_image(lambda i: C.dropout(i, 0.5)),
    "convolution": of_image(
        lambda i: layers.Convolution2D((3, 3), 4, pad=True, strides=2, activation=C.relu, init=C.normal(0.3))(i)
    ),
    "convolution, dilated": of_image(
        lambda i: C.convolution(
            weights(4, 3, 2, 2), i, strides=(2, 1), auto_padding=[False, True, False], dilation=(1, 2)
        )
    ),
    "convolution that leaves out cells at both ends": of_image(
        lambda i: C.convolution(weights(4, 3, 1, 1), i, strides=(3, 3), auto_padding=[True])
    ),
    "pooling that leaves out cells at both ends": of_image(
        lambda i: C.pooling(i, C.AVG_POOLING, (1, 2), (3, 4), [True])
    ),
    "convolution by groups": of_image(lambda i: C.convolution(weights(6, 1, 3, 2), i, groups=3, auto_padding=[False])),
    "convolution by one filter": of_image(lambda i: C.convolution(weights(3, 2, 2), i, auto_padding=[False])),
    "convolution without channels": of_x(
        lambda x: layers.Convolution2D((2, 2), None, reduction_rank=0, pad=True, init=C.normal(0.3))(x)
    ),
    "convolution of lines": lambda: (
        layers.Convolution1D(3, 2, pad=True, strides=3, init=C.normal(0.3))(C.input_variable((3, 11), name="line")),
        {"line": LINES},
    ),
    "convolution of cubes": lambda: (
        layers.Convolution3D((2, 3, 2), 3, init=C.normal(0.3))(C.input_variable((2, 5, 4, 6), name="cube")),
        {"cube": CUBES},
    ),
    "convolution of steps": _images_of_steps,
    "convolution, transposed": of_image(
        lambda i: layers.ConvolutionTranspose2D((3, 3), 2, strides=2, pad=True, init=C.normal(0.3))(i)
    ),
    "convolution, transposed to a shape": of_image(
        lambda i: C.convolution_transpose(weights(3, 2, 3, 2), i, (2, 2), auto_padding=[True], output_shape=(2, 13, 17))
    ),
    "maximum pooling": of_image(lambda i: layers.MaxPooling((3, 3), 2, pad=True)(i)),
    "maximum pooling beyond": of_image(lambda i: C.pooling(i, C.MAX_POOLING, (2, 2), (2, 2), ceil_out_dim=True)),
    "maximum pooling without channels": of_x(lambda x: C.pooling(x, C.MAX_POOLING, (2, 3), (1, 2))),
    "average pooling": of_image(lambda i: layers.AveragePooling((2, 3), (1, 2))(i)),
    "average pooling, padded": of_image(lambda i: C.pooling(i, C.AVG_POOLING, (3, 2), (2, 2), [True])),
    "average pooling with zeros": of_image(
        lambda i: C.pooling(i, C.AVG_POOLING, (3, 2), (2, 2), [True], include_pad=True)
    ),
    "global pooling": of_image(lambda i: layers.GlobalAveragePooling()(i) + layers.GlobalMaxPooling()(i)),
    "unpooling": of_image(lambda i: C.unpooling(C.pooling(i, 0, (2, 2), (2, 2)) * 3, i, 0, (2, 2), (2, 2))),
    "batch normalization": _trained(lambda i: layers.BatchNormalization(map_rank=1, epsilon=0.1)(i)),
    "batch normalization of elements": _trained(lambda i: layers.BatchNormalization(epsilon=0.1)(i)),
    "layer normalization": of_image(lambda i: layers.LayerNormalization()(i)),
    "local response": of_image(lambda i: C.local_response_normalization(i, 1, 1.0, 0.5, 0.75)),
    "mean and variance": of_image(lambda i: C.mean_variance_normalization(i, use_stats_across_channels=True)),
    "scaled image": of_image(lambda i: C.image_scaler(i, 2.0, [1, 2, 3])),
    "mean": of_image(lambda i: C.mean(i, i * 3)),
    "two outputs": of_x(lambda x: C.combine(C.exp(x, name="first"), C.reduce_sum(x, name="second"))),
    "an output twice": of_x(lambda x: C.combine(C.exp(x), x)),
    "first": of_steps(C.sequence.first),
    "last": of_steps(C.sequence.last),
    "is first": of_steps(C.sequence.is_first),
    "is last": of_steps(C.sequence.is_last),
    "steps from": of_steps(lambda s: C.sequence.slice(s, 1, 0)),
    "steps to": of_steps(lambda s: C.sequence.slice(s, 0, -1)),
    "steps between": of_steps(lambda s: C.sequence.slice(s, -3, -1)),
    "sum of steps": of_steps(C.sequence.reduce_sum),
    "maximum of steps": of_steps(C.sequence.reduce_max),
    "mean of steps": of_steps(lambda s: C.reduce_mean(s, C.Axis.default_dynamic_axis())),
    "minimum of steps": of_steps(lambda s: C.reduce_min(s, C.Axis.default_dynamic_axis())),
    "softmax of steps": of_steps(C.sequence.softmax),
    "past value": of_steps(lambda s: C.sequence.past_value(s, time_step=2)),
    "past value of a parameter": of_steps(lambda s: C.sequence.past_value(s, weights(3))),
    "future value": of_steps(lambda s: C.sequence.future_value(s, 1.5, 3)),
    "past value of a sample": of_both(lambda s, one: C.sequence.past_value(s, one)),
    "further than the steps": of_steps(lambda s: C.sequence.past_value(s, -1, 7)),
    "broadcast to steps": of_both(lambda s, one: C.sequence.broadcast_as(one, s)),
    "steps and samples": of_both(lambda s, one: (s * one + weights(2, 3)) / C.sequence.last(s)),
    "spliced steps and samples": of_both(lambda s, one: C.splice(s, C.sequence.broadcast_as(one, s))),
    "unpacked": of_steps(lambda s: C.sequence.unpack(s, 0.5)),
    "unpacked without a mask": of_steps(lambda s: C.sequence.unpack(s, 0.5, True)),
    "lstm": of_steps(lambda s: layers.Recurrence(layers.LSTM(4, init=C.normal(0.5), init_bias=0.1))(s)),
    "lstm backwards": of_steps(
        lambda s: layers.Recurrence(layers.LSTM(4, init=C.normal(0.5)), go_backwards=True, initial_state=0.3)(s)
    ),
    "lstm with all states": of_steps(
        lambda s: C.combine(layers.Recurrence(layers.LSTM(4, init=C.normal(0.5)), return_full_state=True)(s))
    ),
    "lstm of many kinds": of_steps(
        lambda s: layers.Sequential(
            [
                layers.Embedding(5, init=C.normal(0.5)),
                layers.Stabilizer(),
                layers.Recurrence(
                    layers.LSTM(4, enable_self_stabilization=True, use_peepholes=True, init=C.normal(0.5))
                ),
                layers.Recurrence(layers.LSTM(3, cell_shape=5, init=C.normal(0.5))),
                C.sequence.last,
                layers.Dense(2, name="out", init=C.normal(0.5)),
            ]
        )(s)
    ),
    "gru": of_steps(lambda s: layers.Recurrence(layers.GRU(4, init=C.normal(0.5)), go_backwards=True)(s)),
    "rnn": of_steps(lambda s: layers.Fold(layers.RNNStep(3, activation=C.relu, init=C.normal(0.5)))(s)),
    "rnn of sigmoids": of_steps(lambda s: layers.Recurrence(layers.RNNStep(3, init=C.normal(0.5)))(s)),
    "two directions": of_steps(
        lambda s: C.splice(
            layers.Recurrence(layers.GRU(3, init=C.normal(0.5)))(s),
            layers.Recurrence(layers.LSTM(2, init=C.normal(0.5)), go_backwards=True)(s),
        )
    ),
    "two steps back": of_steps(_two_back),
    "told": of_both(_told),
}
# Lengths that data decides, which ONNX's tensors do not have.
RAGGED = {
    "gather steps": of_steps(lambda s: C.sequence.gather(s, C.greater(C.slice(s, 0, 0, 1), 0))),
    "where": of_steps(lambda s: C.sequence.where(C.greater(C.slice(s, 0, 0, 1), 0))),
    "scatter": of_steps(
        lambda s: (lambda c: C.sequence.scatter(C.sequence.gather(s, c) * 2, c))(C.greater(C.slice(s, 0, 0, 1), 0))
    ),
    "top n": of_two(lambda x, y: C.classification_error(C.reshape(x, 12), C.reshape(C.hardmax(y), 12), topN=3)),
    "negative samples": of_vector(lambda v: C.cosine_distance_with_negative_samples(v, C.exp(v), 1, 2)),
    "edits": of_steps(lambda s: C.edit_distance_error(s, s * weights(3), tokensToIgnore=[1])),
    "ranks": of_vector(lambda v: C.lambda_rank(v[0], C.abs(v[1]), C.ceil(v[2]))),
    "gains": of_vector(lambda v: C.ndcg_at_1(v[0], C.abs(v[1]), C.ceil(v[2]))),
    "frequencies": of_vector(
        lambda v: (
            C.random_sample_inclusion_frequency(C.constant(np.array([1.0, 2, 3], "f4")), 2, True) + C.reduce_sum(v)
        )
    ),
}


def flat(result):
    """Return the arrays of a result of `Function.eval`."""
    if isinstance(result, dict):
        return [array for value in result.values() for array in flat(value)]
    return [np.asarray(x) for x in result] if isinstance(result, list) else [np.asarray(result)]
