"""The answers of CNTK 2.7: a program that runs under it and under the façade.

``python cntk_numbers.py FILE`` under CNTK 2.7 (Python 3.6) writes `cntk_numbers.json`. test_cntk_numbers runs the same
cases under the façade and compares. So it is Python for both: no strict zip, no new syntax.
"""

import json
import random
import sys

import numpy as np

f4, f8 = np.float32, np.float64
FAILS = "CNTK fails"
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def inputs(C, arrays, dtype=f4, gradients=True):
    """Return variables for arrays with a batch axis, and their data."""
    made, fed = [], {}
    for array in arrays:
        array = np.asarray(array, dtype)
        v = C.input_variable(array.shape[1:], needs_gradient=gradients, dtype=dtype)
        made.append(v)
        fed[v] = array
    return made, fed


def values_and_gradients(C, function, *arrays, **options):
    """Shape, value, and the gradient for each operand."""
    variables, fed = inputs(C, arrays, options.get("dtype", f4))
    f = function(*variables)
    return [list(f.shape), f.eval(fed)] + [f.grad(fed, wrt=[v]) for v in variables]


def trained(C, trainer, fed, parameters, times=3):
    found = []
    for _ in range(times):
        trainer.train_minibatch(fed)
        found.append([p.value for p in parameters])
    return [trainer.previous_minibatch_sample_count, trainer.previous_minibatch_loss_average, found]


# ---- arrays are copied ------------------------------------------------------------------------------


@case
def arrays_are_copied(C):
    def after(make, read):
        array = np.arange(3, dtype=f4).reshape(1, 3)
        made = make(array)
        array[:] = 9
        return np.asarray(read(made))

    v = C.sequence.input_variable(3)
    return {
        "constant": after(C.constant, lambda c: c.value),
        "Constant": after(C.Constant, lambda c: c.value),
        "parameter": after(lambda a: C.parameter(init=a), lambda p: p.value),
        "parameter of a shape": after(lambda a: C.parameter((1, 3), init=a), lambda p: p.value),
        "Parameter": after(lambda a: C.Parameter(init=a), lambda p: p.value),
        "Value": after(C.Value, lambda x: x.asarray()),
        "Value.create": after(lambda a: C.Value.create(C.input_variable(3), a), lambda x: x.asarray()),
        "Value.create of a list": after(lambda a: C.Value.create(v, [a]), lambda x: x.as_sequences()[0]),
        "NDArrayView": after(C.NDArrayView.from_dense, lambda x: x.asarray()),
        "NDArrayView that borrows": after(lambda a: C.NDArrayView.from_dense(a, borrow=True), lambda x: x.asarray()),
        "Value of a view": after(lambda a: C.Value(C.NDArrayView.from_dense(a)), lambda x: x.asarray()),
        "operand": after(lambda a: C.plus(a, np.zeros(3, f4)), lambda f: f.eval()),
    }


@case
def values_handed_out_are_copies(C):
    def written(make, read):
        made = make()
        read(made)[:] = 9
        return np.asarray(read(made))

    a = np.arange(3, dtype=f4).reshape(1, 3)
    v = C.sequence.input_variable(3)
    return {
        "parameter": written(lambda: C.parameter(init=a), lambda p: p.value),
        "Value": written(lambda: C.Value(a), lambda x: x.asarray()),
        "sequences": written(lambda: C.Value.create(v, [a, a]), lambda x: x.as_sequences()[0]),
        "NDArrayView": written(lambda: C.NDArrayView.from_dense(a), lambda x: x.asarray()),
        "result": written(lambda: C.alias(C.constant(a)), lambda f: f.eval()),
    }


@case
def results_do_not_follow_the_data(C):
    x = C.input_variable(3)
    data = np.float32([[1, 2, 3]])
    found = C.alias(x).eval({x: data})
    data[:] = 9
    return found


@case
def a_users_function_cannot_write_to_the_graph(C):
    class Writes(C.ops.functions.UserFunction):
        def __init__(self, a):
            super(Writes, self).__init__([a])
            self.kept = None

        def forward(self, a, device=None, outputs_to_retain=None):
            a[:] = 7
            self.kept = np.ones_like(a)
            return None, self.kept

        def backward(self, state, gradient):
            return gradient

        def infer_outputs(self):
            first = self.inputs[0]
            return [C.output_variable(first.shape, first.dtype, first.dynamic_axes)]

    x = C.input_variable(2)
    user = Writes(x)
    data = np.float32([[1, 2]])
    found = (C.user_function(user) * 1 + x * 1).eval({x: data})
    user.kept[:] = 50
    return [found, data]


@case
def minibatches_stay(C):
    source = C.io.MinibatchSourceFromData({"x": np.arange(12, dtype=f4).reshape(6, 2)})
    first = source.next_minibatch(2)[source.streams.x]
    held = first.asarray()
    second = source.next_minibatch(2)[source.streams.x].asarray()
    second[:] = 99
    return [held, source.next_minibatch(2)[source.streams.x].asarray()]


# ---- criteria ---------------------------------------------------------------------------------------

ODD = [
    ("weighted", [[1, 2, 3]], [[0, 0, 2]]),
    ("several", [[1, 2, 3]], [[1, 1, 0]]),
    ("smooth", [[3, 1, 0]], [[0.2, 0.3, 0.5]]),
    ("none", [[1, 2, 3]], [[0, 0, 0]]),
    ("negative", [[1, 0]], [[-1, 1]]),
    ("large", [[1000, 0]], [[0, 1]]),
    ("one class", [[5]], [[1]]),
    ("one class twice", [[5]], [[2]]),
    ("rows", [[1, 2, 3], [3, 1, 0]], [[0, 0, 1], [0.2, 0.3, 0.5]]),
    ("row vector", [[[1, 2, 3]]], [[[0, 0, 2]]]),
    ("column vector", [[[1], [2], [3]]], [[[0], [0], [2]]]),
    ("matrices", [[[1, 2, 3], [3, 1, 0]]], [[[0, 0, 1], [0.2, 0.3, 0.9]]]),
]


@case
def cross_entropy(C):
    f = C.cross_entropy_with_softmax
    found = {name: values_and_gradients(C, f, o, t) for name, o, t in ODD}
    found["double"] = values_and_gradients(C, f, [[1, 2, 3]], [[0, 1, 2]], dtype=f8)
    _, o, t = ODD[-1]
    for axis in (0, 1):
        found["axis %d" % axis] = values_and_gradients(C, lambda a, b, axis=axis: f(a, b, axis=axis), o, t)
    every = C.Axis.all_static_axes()
    found["all axes"] = values_and_gradients(C, lambda a, b: f(a, b, axis=every), o, t)
    return found


@case
def cross_entropy_of_sparse_labels(C):
    import scipy.sparse

    labels = scipy.sparse.csr_matrix(np.float32([[0, 1, 2], [1, 0, 0], [0, 0, 0], [0, 0.5, 0.5]]))
    o = np.float32([[1, 2, 3], [3, 2, 1], [0, 0, 1], [1, 1, 2]])
    found = []
    for f in (C.cross_entropy_with_softmax, C.classification_error):
        x, y = C.input_variable(3, needs_gradient=True), C.input_variable(3, is_sparse=True)
        made = f(x, y)
        found.append([made.eval({x: o, y: labels}), made.grad({x: o, y: labels}, wrt=[x])])
    return found


SCORES = [[3, 1, 1, 0], [1, 1, 1, 1], [0, 3, 2, 3], [0, 3, 2, 3], [5, 4, 3, 2], [2, 1, 2, 2]]
TARGETS = [[0.5, 0.7, 0.2, 0.7], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 2, 0], [0, 0, 0, 0]]


@case
def classification_error(C):
    f = C.classification_error
    found = {
        "soft": values_and_gradients(C, f, SCORES, TARGETS),
        "axis 0": values_and_gradients(C, lambda a, b: f(a, b, axis=0), SCORES, TARGETS)[:2],
    }
    for top in (2, 3, 4):
        variables, fed = inputs(C, [SCORES, TARGETS])
        made = f(variables[0], variables[1], topN=top)
        found["top %d" % top] = [list(made.shape), made.eval(fed)]
    variables, fed = inputs(C, [[[1, 1, 1]] * 3, np.eye(3)])
    found["top 2 of equals"] = f(variables[0], variables[1], topN=2).eval(fed)
    o, t = [[[1, 2, 3], [3, 1, 0]]], [[[0, 0, 1], [0.9, 0.3, 0.2]]]
    found["matrices"] = values_and_gradients(C, f, o, t)
    for axis in (0, 1):
        found["matrices, axis %d" % axis] = values_and_gradients(C, lambda a, b, axis=axis: f(a, b, axis=axis), o, t)[
            :2
        ]
    found["one class"] = values_and_gradients(C, f, [[5], [5]], [[1], [0]])
    return found


@case
def binary_cross_entropy(C):
    f = C.binary_cross_entropy
    o, t = [[0.2, 0.7, 0.5]], [[0, 1, 0.3]]
    return {
        "soft": values_and_gradients(C, f, o, t),
        "on the bounds": values_and_gradients(C, f, [[0, 1, 0, 1]], [[0, 1, 1, 0]]),
        "outside": values_and_gradients(C, f, [[-1, 2, 0.5, 0.5]], [[0, 1, 2, -1]]),
        "double": values_and_gradients(C, f, [[0.2, 0.7, 0.5, 0]], [[0, 1, 0.3, 1]], dtype=f8),
        "column": values_and_gradients(C, f, [[[0.2], [0.7]]], [[[0], [1]]]),
        "number": values_and_gradients(C, f, [0.2], [1]),
        "repeated": values_and_gradients(C, f, [[0.2, 0.3]], [[1]]),
    }


@case
def weighted_binary_cross_entropy(C):
    found = []
    for o, t, w in (([[0.2], [0.7]], [[0], [1]], [[2], [3]]), ([[0.2]], [[0.3]], [[2]])):
        variables, fed = inputs(C, [o, t, w], gradients=False)
        made = C.weighted_binary_cross_entropy(*variables)
        found.append([list(made.shape), len(made.dynamic_axes), made.eval(fed)])
    x, y, w = C.input_variable(1), C.input_variable(1), C.input_variable(1)
    p = C.parameter((1, 1), init=0.5)
    z = C.sigmoid(C.times(x, p))
    learner = C.sgd([p], C.learning_parameter_schedule(0.1))
    trainer = C.Trainer(z, (C.weighted_binary_cross_entropy(z, y, w), None), [learner])
    fed = {x: np.float32([[1], [2], [-1]]), y: np.float32([[0], [1], [1]]), w: np.float32([[1], [2], [3]])}
    return [*found, trained(C, trainer, fed, [p])]


@case
def other_criteria(C):
    o, t = [[0.2, 0.7, 0.5]], [[0, 1, 0.3]]
    return {
        "squared": values_and_gradients(C, C.squared_error, o, t),
        "squared, repeated": values_and_gradients(C, C.squared_error, [[[0.2], [0.7]]], [[[1, 2]]]),
        "squared numbers": values_and_gradients(C, C.squared_error, [0.2, 3], [1, 4]),
        "cosine": values_and_gradients(C, C.cosine_distance, o, t),
        "cosine of matrices": values_and_gradients(
            C, C.cosine_distance, [[[0.2, 0.7], [0.5, 1]]], [[[0, 1], [0.3, 2]]]
        ),
    }


# ---- gradients on bounds and of equals ----------------------------------------------------------------

V = [[-2, -1, -0.5, 0, 0.5, 1, 2]]


@case
def functions_at_their_edges(C):
    names = "relu abs sqrt log floor ceil round reciprocal exp softsign elu selu leaky_relu hardmax element_not"
    found = {name: values_and_gradients(C, getattr(C, name), V) for name in names.split()}
    found["log of tiny"] = values_and_gradients(C, C.log, [[1e-38, 1.0001e-37, 9e-38, 0, -1]])
    found["log of tiny, double"] = values_and_gradients(C, C.log, [[1e-38, 1e-300, 0, -1]], dtype=f8)
    found["elu 2"] = values_and_gradients(C, lambda x: C.elu(x, 2.0), V)
    found["param_relu"] = values_and_gradients(C, C.param_relu, [[0.3] * 7], V)
    found["hard_sigmoid"] = values_and_gradients(C, lambda x: C.hard_sigmoid(x, 0.2, 0.5), [[-2.5, -3, 0, 2.5, 3]])
    found["clip"] = values_and_gradients(C, lambda x: C.clip(x, -1, 1), V)
    bounds = [[0, 0, 0, 0, 0]], [[1, 1, 1, 1, 0]]
    found["clip by variables"] = values_and_gradients(C, C.clip, [[1, 0, 5, -5, 0]], *bounds)
    found["clip, bounds crossed"] = values_and_gradients(C, C.clip, [[1, 0, 5, -5, 0]], [[2] * 5], [[1] * 5])
    found["max"] = values_and_gradients(C, C.element_max, [[1, 2, 3]], [[1, 3, 2]])
    found["min"] = values_and_gradients(C, C.element_min, [[1, 2, 3]], [[1, 3, 2]])
    found["max of three"] = values_and_gradients(C, C.element_max, [[1, 2, 3]], [[1, 3, 2]], [[1, 3, 0]])
    found["pow"] = values_and_gradients(C, C.pow, [[-2, -2, 0, 0, 0, 2, 0]], [[2, 3, 1, -1, 0.5, 0, 0]])
    found["divide"] = values_and_gradients(C, C.element_divide, [[1, 0, -1, 3]], [[0, 0, 2, -0.0]])
    found["select"] = values_and_gradients(C, C.element_select, [[0, 1, -1, 0.5]], [[1, 2, 3, 4]], [[5, 6, 7, 8]])
    for name in ("element_and", "element_or", "element_xor", "equal", "less"):
        found[name] = values_and_gradients(C, getattr(C, name), [[0, 1, -1, 0.5]], [[1, 1, 1, -1]])
    return found


@case
def reductions_of_equals(C):
    def along_sequences(data):
        x = C.sequence.input_variable(2, needs_gradient=True)
        f = C.sequence.reduce_max(x)
        return [f.eval({x: data}), f.grad({x: data}, wrt=[x])]

    found = {
        "max": values_and_gradients(C, lambda x: C.reduce_max(x, 0), [[1, 3, 3]]),
        "min": values_and_gradients(C, lambda x: C.reduce_min(x, 0), [[1, 1, 3]]),
        "max of rows": values_and_gradients(C, lambda x: C.reduce_max(x, 1), [[[1, 3, 3], [2, 2, 2]]]),
        "max of all": values_and_gradients(C, C.reduce_max, [[[1, 3, 3], [2, 3, 2]]]),
        "global": values_and_gradients(C, lambda x: C.layers.GlobalMaxPooling()(x), [[[[1, 1], [1, 0]]]]),
        "pooling": values_and_gradients(C, lambda x: C.pooling(x, C.MAX_POOLING, (2, 2), (2, 2)), [[[[1, 1], [1, 1]]]]),
        "sequences": along_sequences([np.float32([[1, 2], [3, 2], [3, 1]]), np.float32([[1, 1]])]),
    }
    for name, axis in (("batch", C.Axis.default_batch_axis()), ("everything", C.Axis.all_axes())):
        variables, fed = inputs(C, [[[1], [3], [3]]])
        f = C.reduce_max(variables[0], axis)
        found[name] = [f.eval(fed), f.grad(fed, wrt=variables)]
    return found


@case
def softmax_without_an_axis(C):
    x = C.input_variable((2, 2))
    data = np.float32([[[1, 2], [3, 4]]])
    found = [f(x).eval({x: data}) for f in (C.softmax, C.log_softmax, C.hardmax)]
    return [*found, C.softmax(x, 0).eval({x: data})]


@case
def normalization_over_channels(C):
    x = C.input_variable((8, 1, 1))
    data = np.arange(1, 9, dtype=f4).reshape(1, 8, 1, 1)
    return [C.local_response_normalization(x, n, 1.5, 0.5, 0.75).eval({x: data}) for n in (0, 1, 3)]


# ---- element types --------------------------------------------------------------------------------


@case
def names_of_element_types(C):
    given = {
        "'float'": "float",
        "float": float,
        "int": int,
        "'float32'": "float32",
        "'float64'": "float64",
        "'double'": "double",
        "'float16'": "float16",
        "float32": np.float32,
        "float64": np.float64,
        "float16": np.float16,
        "dtype": np.dtype("float64"),
        "DataType_Float": C.cntk_py.DataType_Float,
        "DataType_Double": C.cntk_py.DataType_Double,
        "DataType_Float16": C.cntk_py.DataType_Float16,
        "None": None,
    }
    made = {
        "input": lambda t: C.input_variable(2, dtype=t),
        "sequence": lambda t: C.sequence.input_variable(2, dtype=t),
        "parameter": lambda t: C.parameter(2, init=1, dtype=t),
        "constant": lambda t: C.constant(1, (2,), dtype=t),
    }
    found = {}
    for kind in sorted(made):
        for name in sorted(given):
            found[kind + " " + name] = np.dtype(made[kind](given[name]).dtype).name
    return found


@case
def unknown_element_types_are_refused(C):
    found = []
    for dtype in (np.int32, "int32", bool, np.int64, np.uint8, str, 3, "Float"):
        try:
            found.append(np.dtype(C.input_variable(2, dtype=dtype).dtype).name)
        except (TypeError, ValueError):
            found.append("refused")
    return found


@case
def element_types_of_constants(C):
    given = {
        "double": np.ones(3),
        "single": np.ones(3, f4),
        "half": np.ones(3, np.float16),
        "int8": np.ones(3, np.int8),
        "list": [1, 2, 3],
        "number": 1.5,
        "int": 1,
    }
    x, d = C.input_variable(3), C.input_variable(3, dtype=f8)
    found = {}
    for name in sorted(given):
        a = given[name]
        made = [C.Constant(a), C.constant(a), C.Parameter(init=a), C.parameter(init=a), C.sigmoid(a)]
        if name != "int8":
            made += [x + a, d + a, C.plus(a, a)]
        found[name] = [np.dtype(m.dtype).name for m in made]
    with C.default_options(dtype=f8):
        made = [C.input_variable(2), C.Parameter(2, init=1), C.parameter(2), C.Constant(1), C.constant(1)]
        made += [C.Constant(np.ones(2, f4)), C.constant(np.ones(2, f4)), C.layers.Dense(2)(C.input_variable(3))]
        made += [C.layers.Recurrence(C.layers.LSTM(2))(C.sequence.input_variable(3)), C.random.uniform((2,))]
        found["default_options"] = [np.dtype(m.dtype).name for m in made]
    return found


# ---- label samples of a loss -------------------------------------------------------------------------


@case
def samples_of_a_loss(C):
    every, batch = C.Axis.all_axes(), C.Axis.default_batch_axis()

    def squares(z):
        return C.reduce_sum(C.square(z), 0)

    losses = {
        "sample": squares,
        "vector": C.square,
        "matrix": lambda z: C.reshape(C.square(z), (1, 2)),
        "all axes": lambda z: C.reduce_sum(C.square(z), every),
        "mean over all axes": lambda z: C.reduce_mean(C.square(z), every),
        "batch axis": lambda z: C.reduce_sum(squares(z), batch),
        "mean over the batch": lambda z: C.reduce_mean(squares(z), batch),
    }
    along = {
        "steps": squares,
        "vectors": C.square,
        "sequences": lambda z: C.sequence.reduce_sum(squares(z)),
        "last": lambda z: C.sequence.last(squares(z)),
        "all axes": lambda z: C.reduce_sum(C.square(z), every),
        "all axes of the last": lambda z: C.reduce_sum(C.square(C.sequence.last(z)), every),
    }
    metrics = {
        "none": None,
        "vector": lambda z: C.abs(z),
        "sample": lambda z: C.reduce_sum(C.abs(z)),
        "all axes": lambda z: C.reduce_sum(C.abs(z), every),
        "best two": lambda z: C.classification_error(z, C.square(z), topN=2),
    }
    schedules = {
        "minibatch": C.learning_parameter_schedule(0.1),
        "sample": C.learning_parameter_schedule_per_sample(0.1),
        "two samples": C.learning_parameter_schedule(0.1, minibatch_size=2),
    }

    def run(loss, metric, schedule, sequences):
        kind = C.sequence.input_variable if sequences else C.input_variable
        x = kind(3)
        w = C.parameter((3, 2), init=np.arange(6, dtype=f4).reshape(3, 2) / 10)
        z = C.times(x, w)
        learner = C.sgd([w], schedule)
        trainer = C.Trainer(z, (loss(z), metric(z) if metric else None), [learner])
        lengths = (1, 2, 3, 4) if sequences else (4,)
        data = [np.arange(3 * k, dtype=f4).reshape(k, 3) / 10 for k in lengths]
        data = data if sequences else data[0]
        trainer.train_minibatch({x: data})
        found = [trainer.previous_minibatch_sample_count, trainer.previous_minibatch_loss_average]
        found += [trainer.total_number_of_samples_seen, w.value]
        if metric:
            found += [trainer.previous_minibatch_evaluation_average, trainer.test_minibatch({x: data})]
        return found

    found = {}
    for a in sorted(losses):
        for b in sorted(metrics):
            found["%s, metric %s" % (a, b)] = run(losses[a], metrics[b], schedules["minibatch"], False)
        for b in sorted(schedules):
            found["%s, rate by %s" % (a, b)] = run(losses[a], None, schedules[b], False)
    for a in sorted(along):
        for b in ("none", "sample", "all axes"):
            found["sequences: %s, metric %s" % (a, b)] = run(along[a], metrics[b], schedules["minibatch"], True)
    return found


@case
def samples_of_a_loss_of_two_inputs(C):
    found = []
    for turned in (False, True):
        x, s = C.input_variable(3), C.sequence.input_variable(3)
        w = C.parameter((3, 2), init=0.1)
        a, b = (C.reduce_sum(C.square(C.times(v, w)), C.Axis.all_axes()) for v in (x, s))
        learner = C.sgd([w], C.learning_parameter_schedule(0.1))
        trainer = C.Trainer(None, (b + a if turned else a + b, None), [learner])
        trainer.train_minibatch({x: np.ones((2, 3), f4), s: [np.ones((3, 3), f4), np.ones((4, 3), f4)]})
        found.append([trainer.previous_minibatch_sample_count, trainer.previous_minibatch_loss_average])
    return found


@case
def evaluators(C):
    x = C.input_variable(3)
    functions = (C.square(x), C.reduce_sum(C.square(x), C.Axis.all_axes()), C.classification_error(x, x, topN=2))
    return [C.Evaluator(f).test_minibatch({x: np.ones((4, 3), f4)}) for f in functions]


# ---- learners -------------------------------------------------------------------------------------


def regression(C, learner_of, times=3):
    x = C.input_variable(3)
    w, b = C.parameter((3, 2), init=0.5), C.parameter(2, init=0.1)
    z = C.times(x, w) + b
    trainer = C.Trainer(z, (C.reduce_sum(C.square(z)), None), [learner_of([w, b])])
    return trained(C, trainer, {x: np.arange(6, dtype=f4).reshape(2, 3)}, [w, b], times)


def pairs(parameters, gradients):
    return [(parameters[i], gradients[i]) for i in range(len(parameters))]


@case
def universal_learners(C):
    def descent(ps, gs):
        return C.combine([C.assign(p, p - 0.01 * g) for p, g in pairs(ps, gs)])

    def momentum(ps, gs):
        found = []
        for p, g in pairs(ps, gs):
            state = C.constant(0, p.shape)
            found.append(C.assign(p, p - 0.01 * C.assign(state, 0.9 * state + g)))
        return C.combine(found)

    def adagrad(ps, gs):
        found = []
        for p, g in pairs(ps, gs):
            squares = C.constant(0, shape=p.shape, name="squares")
            found.append(C.assign(p, p - 0.1 * g / C.sqrt(C.assign(squares, squares + g * g) + 1e-6)))
        return C.combine(found)

    def whole(ps, gs):
        norm = C.sqrt(C.reduce_sum(gs[0] * gs[0]) + C.reduce_sum(gs[1] * gs[1]))
        return C.combine([C.assign(p, p - 0.01 * g / norm) for p, g in pairs(ps, gs)])

    def chained(ps, gs):
        first = C.assign(ps[0], ps[0] - 0.01 * gs[0])
        return C.combine([first, C.assign(ps[1], ps[1] + C.reduce_sum(first))])

    found = {f.__name__: regression(C, lambda ps, f=f: C.universal(f, ps)) for f in (descent, momentum, adagrad)}
    found.update({f.__name__: regression(C, lambda ps, f=f: C.universal(f, ps)) for f in (whole, chained)})
    w = C.parameter((3, 2), init=0.5)
    learner = C.universal(lambda ps, gs: C.combine([C.assign(p, p - 0.1 * g) for p, g in pairs(ps, gs)]), [w])
    found["by hand"] = [learner.update({w: np.ones((3, 2), f4)}, 4), w.value]
    return found


@case
def assignments_come_last(C):
    p, q = C.parameter((), init=1.0), C.parameter((), init=10.0)
    f = C.combine([C.assign(p, p + q), C.assign(q, p * 2), p * 100, q * 1])
    found = [float(np.asarray(v)) for v in f.eval().values()] + [float(p.value), float(q.value)]
    r = C.parameter((), init=1.0)
    first, second = C.assign(r, r + 1), C.assign(r, r + 5)
    C.combine([second, first]).eval()
    return [*found, float(r.value)]


@case
def rmsprop(C):
    own = {"gamma": 0.9, "inc": 1.2, "dec": 0.7, "max": 10, "min": 1e-3}
    more = ({}, {"need_ave_multiplier": False}, {"minibatch_size": 1}, {"minibatch_size": 0})
    more += ({"gradient_clipping_threshold_per_sample": 0.1}, {"l2_regularization_weight": 0.1})
    rate = C.learning_parameter_schedule(0.01)
    return [regression(C, lambda ps, m=m: C.rmsprop(ps, rate, **dict(own, **m))) for m in more]


# ---- the order of parameters ------------------------------------------------------------------------


def networks(C):
    """Networks of many kinds, by name."""
    L = C.layers
    x, s, image = C.input_variable(3), C.sequence.input_variable(3), C.input_variable((2, 8, 8))

    def shared():
        d, e = L.Dense(3, name="d"), L.Dense(3, name="e")
        return d(e(d(x))) + e(x)

    def residual():
        a = L.Dense(3)(x)
        return L.Dense(3)(L.Dense(5)(a)) + a

    def by_hand(turned):
        w, b, v, c = (C.parameter(n, name=k) for n, k in (((3, 4), "w"), (4, "b"), ((4, 2), "v"), (2, "c")))
        if turned:
            return c + C.times(C.tanh(b + C.times(x, w)), v)
        return C.times(C.tanh(C.times(x, w) + b), v) + c

    def recurrence():
        w, u, b = C.parameter((3, 3), name="w"), C.parameter((3, 3), name="u"), C.parameter(3, name="b")
        h = C.placeholder()
        y = C.tanh(C.times(s, w) + C.times(C.sequence.past_value(h), u) + b)
        y = y.replace_placeholders({h: y})
        return C.times(y, C.parameter((3, 2), name="v"))

    def both_ways():
        there, back = L.Recurrence(L.LSTM(4))(s), L.Recurrence(L.LSTM(5), go_backwards=True)(s)
        return L.Dense(7)(C.splice(there, back))

    def criterion():
        z, y = L.Sequential([L.Dense(4), L.Dense(2)])(x), C.input_variable(2)
        return C.combine([C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)])

    def attention():
        keys, query = (C.sequence.input_variable(n, sequence_axis=C.Axis(k)) for n, k in ((5, "k"), (3, "q")))
        return L.AttentionModel(4)(keys, C.sequence.last(query))

    return [
        ("two layers", lambda: L.Sequential([L.Dense(4), L.Dense(2)])(x)),
        ("recurrent", lambda: L.Dense(2)(L.Recurrence(L.LSTM(4))(s))),
        ("gated", lambda: L.Recurrence(L.GRU(4))(s)),
        ("plain", lambda: L.Recurrence(L.RNNStep(4))(s)),
        (
            "deep",
            lambda: L.Sequential([L.Embedding(5), L.Recurrence(L.LSTM(4)), L.Recurrence(L.GRU(6)), L.Dense(2)])(s),
        ),
        ("both ways", both_ways),
        ("fold", lambda: L.Dense(2)(L.Fold(L.LSTM(4))(s))),
        ("peepholes", lambda: L.Recurrence(L.LSTM(4, use_peepholes=True))(s)),
        ("stabilized", lambda: L.Recurrence(L.LSTM(4, enable_self_stabilization=True))(s)),
        ("stabilized gates", lambda: L.Recurrence(L.GRU(4, enable_self_stabilization=True))(s)),
        ("stabilizer", lambda: L.Sequential([L.Dense(4), L.Stabilizer(), L.Dense(2)])(x)),
        ("batch normalization", lambda: L.Sequential([L.Dense(4), L.BatchNormalization(), L.Dense(2)])(x)),
        ("layer normalization", lambda: L.Sequential([L.Dense(4), L.LayerNormalization(), L.Dense(2)])(x)),
        (
            "convolutions",
            lambda: L.Sequential([L.Convolution2D((3, 3), 8), L.Convolution2D((3, 3), 4), L.Dense(5)])(image),
        ),
        ("transposed", lambda: L.ConvolutionTranspose2D((3, 3), 8)(image)),
        ("shared", shared),
        ("residual", residual),
        ("by hand", lambda: by_hand(False)),
        ("by hand, turned", lambda: by_hand(True)),
        ("recurrence by hand", recurrence),
        ("criterion", criterion),
        ("attention", attention),
        ("range", lambda: L.For(range(3), lambda i: L.Dense(i + 2))(x)),
        ("clique", lambda: L.SequentialClique([L.Dense(3), L.Dense(3)])(x)),
        ("side by side", lambda: L.Sequential([(L.Dense(2), L.Dense(4)), C.splice, L.Dense(5)])(x)),
        ("clone", lambda: L.Sequential([L.Dense(4), L.Recurrence(L.LSTM(3)), L.Dense(2)])(s).clone("clone")),
        ("layer of a parameter", lambda: L.Dense(2)(C.parameter(3, name="p")) + x[0:2]),
    ]


@case
def order_of_parameters(C):
    return [[name, [list(p.shape) for p in make().parameters]] for name, make in networks(C)]


def random_network(C, seed):
    """Some operations on what came before, with their own parameters or shared."""
    r, made, shared = random.Random(seed), [0], []

    def parameter(shape=(3,)):
        if shape == (3,) and shared and r.random() < 0.3:
            return r.choice(shared)
        made[0] += 1
        p = C.parameter(shape, init=0.1, name="p%d" % made[0])
        if shape == (3,):
            shared.append(p)
        return p

    sequences = r.random() < 0.5
    x = (C.sequence.input_variable if sequences else C.input_variable)(3)
    pool = [x]

    def operand():
        return r.choice(pool) if r.random() < 0.7 else parameter()

    def recurrence():
        h = C.placeholder()
        w, u, initial = parameter((3, 3)), parameter((3, 3)), parameter() if r.random() < 0.5 else 0
        y = C.tanh(C.times(x, w) + C.times(C.sequence.past_value(h, initial), u) + parameter())
        return y.replace_placeholders({h: y})

    for _ in range(r.randint(4, 12)):
        kind, a, b, c = r.randint(0, 15), operand(), operand(), operand()
        operations = [
            lambda: a + b,
            lambda: C.times(a, parameter((3, 3))),
            lambda: C.element_times(a, b),
            lambda: C.slice(C.splice(a, b), 0, 0, 3),
            lambda: C.param_relu(parameter(), a),
            lambda: C.clip(a, parameter(), parameter()),
            lambda: C.element_select(a, b, c),
            lambda: C.layers.Dense(3)(a),
            lambda: C.element_divide(a, b),
            lambda: C.minus(a, b),
            lambda: C.reshape(C.times_transpose(parameter((3, 3)), a), (3,)),
            lambda: C.softmax(a) * b,
            lambda: C.element_max(a, b, c),
            lambda: C.sequence.past_value(x * parameter(), parameter()) if sequences else C.pow(a, b),
            lambda: (
                C.layers.Recurrence(C.layers.GRU(3))(x * a) if sequences else C.layers.Dense(3)(C.layers.Dense(4)(a))
            ),
            lambda: recurrence() if sequences else C.log_add_exp(a, b),
        ]
        pool.append(operations[kind]().output)
    z, w = pool[-1], r.choice(pool)
    ends = [C.cross_entropy_with_softmax, C.squared_error, C.binary_cross_entropy, C.splice, C.cosine_distance]
    return ends[r.randint(0, 4)](z, w)


@case
def order_of_parameters_of_random_networks(C):
    names = []
    for seed in range(80):
        names.append(" ".join(p.name for p in random_network(C, seed).parameters))
    return names


# ---- shapes of products -----------------------------------------------------------------------------


@case
def products(C):
    def made(f, a, b, left_is_parameter):
        def filled(shape):
            return np.arange(int(np.prod(shape)), dtype=f4).reshape(shape) / 7

        if left_is_parameter:
            left, right = C.parameter(a, init=filled(a)), C.input_variable(b)
            fed = {right: np.stack([filled(b), -filled(b)])}
        else:
            left, right = C.input_variable(a), C.parameter(b, init=filled(b))
            fed = {left: np.stack([filled(a), -filled(a)])}
        result = f(left, right)
        try:
            return [list(result.shape), result.eval(fed)]
        except (ValueError, RuntimeError):
            return FAILS

    found = {}
    shapes = [((7, 3), (3,)), ((3,), (3,)), ((3,), (7, 3)), ((7, 3), (5, 3))]
    shapes += [((1, 3), (3,)), ((3,), (1, 3)), ((1,), (1,)), ((7, 1), (1,))]
    for a, b in shapes:
        for first in (False, True):
            found["times_transpose %s %s %s" % (a, b, first)] = made(C.times_transpose, a, b, first)
    for a, b in [
        ((3,), (3, 2)),
        ((3,), (3,)),
        ((1, 3), (3, 2)),
        ((4, 3), (3, 2)),
        ((4, 3), (3,)),
        ((2, 4, 3), (4, 3, 2)),
    ]:
        for first in (False, True):
            found["times %s %s %s" % (a, b, first)] = made(C.times, a, b, first)
    weights = C.Constant(np.ones((1, 5), f4))
    drawn = C.random_sample(weights, 3, True)
    found["random_sample"] = [list(drawn.shape), list(C.times(drawn, C.Parameter((5, 2))).eval().shape)]
    found["random_sample of a vector"] = list(C.random_sample(C.Constant(np.ones(5, f4)), 3, True).shape)
    return found


# ---- seeds ------------------------------------------------------------------------------------------


@case
def networks_from_one_seed(C):
    """Also which numbers a seed gives."""
    initializers = [
        ("uniform", lambda: C.uniform(0.3)),
        ("normal", lambda: C.normal(0.3)),
        ("truncated_normal", lambda: C.truncated_normal(0.3)),
        ("xavier", lambda: C.xavier(0.5)),
        ("glorot_uniform", lambda: C.glorot_uniform()),
        ("glorot_normal", lambda: C.glorot_normal(2)),
        ("he_uniform", lambda: C.he_uniform()),
        ("he_normal", lambda: C.he_normal()),
    ]

    def network():
        layers = [C.layers.Dense(4), C.layers.Dropout(0.5), C.layers.Dense(2)]
        return [p.value for p in C.layers.Sequential(layers)(C.input_variable(3)).parameters]

    found = {}
    C.cntk_py.set_fixed_random_seed(1)
    found["fixed"] = [network(), network(), C.cntk_py.get_random_seed(), C.cntk_py.is_random_seed_fixed()]
    C.cntk_py.set_fixed_random_seed(2)
    found["fixed at another"] = network()
    lazy = C.parameter((2, 3), init=C.uniform(1))
    C.cntk_py.set_fixed_random_seed(7)
    found["taken when it is made"] = lazy.value
    C.cntk_py.reset_random_seed(5)
    found["not fixed"] = [network(), network(), C.cntk_py.get_random_seed(), C.cntk_py.is_random_seed_fixed()]
    C.cntk_py.reset_random_seed()
    for name, make in initializers:
        for shape in ((5, 7), (3, 4, 2, 2), (300,)):
            value = C.parameter(shape, init=make(), dtype=f8).value
            found["%s %s" % (name, shape)] = value.ravel()[:40]
    found["own seed"] = [C.parameter((2, 2), init=C.uniform(1, seed=s)).value for s in (5, 5, 2**40 + 3)]
    z = C.layers.Dense(2)(C.input_variable(3))
    found["clone"] = [z.clone("clone").parameters[0].value, z.parameters[0].value]
    layers = [C.layers.Embedding(4), C.layers.Recurrence(C.layers.LSTM(3)), C.layers.Dense((2, 2))]
    z = C.layers.Sequential(layers)(C.sequence.input_variable(3))
    found["layers"] = [p.value for p in z.parameters]
    z = C.layers.Sequential([C.layers.Convolution2D((3, 2), 4), C.layers.Dense(3, init=C.he_normal())])
    found["convolution"] = [p.value for p in z(C.input_variable((2, 4, 4))).parameters]
    found["without"] = C.parameter((3, 2)).value
    return found


# ---- placeholders -----------------------------------------------------------------------------------


@case
def placeholders_in_place(C):
    found = {}
    x, d = C.placeholder(), C.placeholder()
    a = x + d
    b = a * 2
    a.replace_placeholders({x: C.input_variable(3), d: C.input_variable(3)})
    found["from below"] = [len(a.placeholders), len(b.placeholders)]

    x, d = C.placeholder(), C.placeholder()
    a = x + d
    b = a * 2
    b.replace_placeholders({x: C.input_variable(3)})
    found["from above"] = [len(a.placeholders), len(b.placeholders)]

    x = C.placeholder()
    a, b = C.sin(x), C.cos(x)
    a.replace_placeholders({x: C.input_variable(3)})
    found["of a leaf alone"] = [len(a.placeholders), len(b.placeholders)]

    x = C.placeholder()
    a = C.sin(x)
    b, copy = C.cos(a) + x, a.clone("share")
    before, uid = a.output, a.uid
    a.replace_placeholders({x: C.input_variable(3)})
    found["half"] = [len(b.placeholders), len(copy.placeholders), list(before.shape), before == a.output, uid == a.uid]

    x, y = C.placeholder(), C.placeholder()
    a = C.sin(x)
    b = C.cos(a)
    a.replace_placeholders({x: y})
    b.replace_placeholders({y: C.input_variable(3)})
    found["twice"] = [list(a.shape), list(b.shape), b.eval({b.arguments[0]: np.zeros((1, 3), f4)})]

    x = C.placeholder()
    a = C.layers.Dense(2, init=0.5)(x)
    b = C.tanh(a)
    a.replace_placeholders({x: C.input_variable(3)})
    found["through a block"] = [len(b.placeholders), b.eval({b.arguments[0]: np.ones((1, 3), f4)})]

    m = C.layers.Dense(2)
    n = C.layers.Sequential([m, C.layers.Dense(5)])
    m.replace_placeholders({m.placeholders[0]: C.input_variable(3)})
    found["layer of a layer"] = [len(m.placeholders), len(n.placeholders)]

    x = C.placeholder()
    a = C.sin(x)
    b = C.cos(a)
    a.replace_placeholders({x: C.input_variable(3)})
    try:
        b.replace_placeholders({x: C.input_variable(5)})
        found["gone"] = "replaced"
    except ValueError:
        found["gone"] = "refused"
    return found


@case
def recurrences_in_place(C):
    data = [np.ones((3, 3), f4)]

    def made():
        s, h = C.sequence.input_variable(3), C.placeholder()
        y = C.tanh(C.times(s, C.parameter((3, 3), init=0.1)) + C.sequence.past_value(h))
        return s, h, y, y * 2

    found = []
    for above in (False, True):
        s, h, y, z = made()
        (z if above else y).replace_placeholders({h: y})
        found += [len(f.placeholders) for f in (y, z)] + [f.eval({s: data})[0] for f in (y, z)]
    return found


# ---- batch normalization ----------------------------------------------------------------------------

ROWS = np.float32([[0.2, -1], [1.5, 0.3], [-0.7, 2], [0.1, 0.4], [-1.2, -0.6], [0.9, 0.8]])
IMAGES = (np.arange(3 * 2 * 2 * 3, dtype=f4).reshape(3, 2, 2, 3) * 37 % 11 - 5) / 3


@case
def batch_normalization(C):
    def run(data, parts, spatial=False, constant=0.0, epsilon=1e-5):
        shape = data.shape[1:]
        own = (shape[0],) if spatial else shape
        x = C.input_variable(shape)
        scale, bias = C.parameter(own, init=1.5), C.parameter(own, init=0.5)
        mean, variance, count = C.constant(0.25, own), C.constant(1.0, own), C.constant(0.0, ())
        f = C.batch_normalization(
            x, scale, bias, mean, variance, spatial, constant, 0, epsilon, use_cudnn_engine=False, running_count=count
        )
        found = []
        for begin, end in parts:
            value = f.forward({x: data[begin:end]}, [f.output], {f.output})[1][f.output]
            found.append([value, mean.value, variance.value, count.value])
        return [*found, f.eval({x: data[:2]})]

    two = [(0, 3), (3, 6), (1, 5)]
    return {
        "one minibatch": run(ROWS, [(0, 6)]),
        "three": run(ROWS, two),
        "three, by a time constant": run(ROWS, two, constant=5),
        "three, all alike": run(ROWS, two, constant=-1),
        "three, the first for ever": run(ROWS, two, constant=np.inf),
        "channels": run(IMAGES, [(0, 1), (1, 3)], spatial=True, constant=5),
        "elements": run(IMAGES, [(0, 3)]),
        "epsilon": run(ROWS, [(0, 6)], epsilon=0.1),
    }


@case
def a_trained_layer_of_batch_normalization(C):
    x, y = C.input_variable(2), C.input_variable(1)
    z = C.layers.Dense(1, init=0.3)(C.layers.BatchNormalization()(x))
    loss = C.squared_error(z, y)
    trainer = C.Trainer(z, (loss, loss), [C.sgd(z.parameters, C.learning_parameter_schedule(0.1))])
    fed = {x: ROWS, y: ROWS[:, :1]}
    found = trained(C, trainer, fed, z.parameters)
    return [*found, trainer.test_minibatch(fed), [[c.name, c.value] for c in z.constants]]


# ---- forms of data ----------------------------------------------------------------------------------


@case
def arrays_of_steps(C):
    """The number of sequences in data for an input with a sequence axis, in training and in evaluation."""
    import scipy.sparse

    a = np.arange(10, dtype=f4).reshape(5, 2)
    sparse = scipy.sparse.csr_matrix(a)
    kinds = {"array": a, "list": [a], "batch": a[None], "two": [a, a[:2]], "lists": a.tolist(), "csr": sparse}
    found = {}
    for name in sorted(kinds):
        data = kinds[name]
        x = C.sequence.input_variable(2, is_sparse=name == "csr", name="x")
        w = C.parameter((2, 1), init=0.1)
        z = C.sequence.reduce_sum(C.times(x, w))
        trainer = C.Trainer(z, (C.square(z), None), [C.sgd([w], C.learning_parameter_schedule(0.001))])
        found[name] = [z.eval({x: data}), trained(C, trainer, {x: data}, [w], 2), list(C.Value.create(x, data).shape)]
    x = C.sequence.input_variable(())
    found["numbers"] = C.sequence.reduce_sum(x).eval({x: a[:, 0]})
    return found


@case
def names_at_the_end(C):
    return C.plus([1, 2], [10], [3, 2], "several").eval()


# ---- layers -----------------------------------------------------------------------------------------


def filled(f):
    """Give parameters numbers that depend on their names and shapes alone."""
    for p in f.parameters:
        n = int(np.prod(p.shape)) if p.shape else 1
        p.value = (np.sin(np.arange(n) * 1.7 + len(p.shape) + n) * 0.5).reshape(p.shape).astype(f4)
    return f


@case
def layers(C):
    L, r = C.layers, np.random.RandomState(0)
    vectors, images = r.normal(size=(4, 3)).astype(f4), r.normal(size=(2, 3, 6, 5)).astype(f4)
    steps = [r.normal(size=(n, 3)).astype(f4) for n in (4, 1, 3)]
    kinds = {
        "vector": (lambda: C.input_variable(3), vectors),
        "image": (lambda: C.input_variable((3, 6, 5)), images),
        "plain image": (lambda: C.input_variable((6, 5)), images[:, 0]),
        "line": (lambda: C.input_variable((3, 6)), images[:, :, :, 0]),
        "sequence": (lambda: C.sequence.input_variable(3), steps),
    }
    found = {}

    def add(name, kind, make):
        variable, data = kinds[kind]
        x = variable()
        f = filled(make(x))
        value = f.eval({x: data})
        value = [value[v] for v in f.outputs] if isinstance(value, dict) else value
        found[name] = [[list(v.shape) for v in f.outputs], value, [[p.name, list(p.shape)] for p in f.parameters]]

    add("dense", "vector", L.Dense((2, 3), activation=C.tanh))
    add("dense over some axes", "image", L.Dense(4, map_rank=1))
    add("embedding", "vector", L.Embedding(4))
    add("convolution without channels", "plain image", L.Convolution2D((3, 2), 2, reduction_rank=0))
    add("convolution without filters", "image", L.Convolution2D((3, 2), None, pad=True))
    add("convolution of a line", "line", L.Convolution1D(3, 2, strides=2))
    for name, options in (("", {}), (", padded", {"pad": True}), (", in steps", {"pad": (True, False), "strides": 2})):
        add("convolution" + name, "image", L.Convolution2D((3, 2), 2, C.relu, **options))
        add("transposed" + name, "image", L.ConvolutionTranspose2D((3, 2), 2, C.relu, **options))
        add("averages" + name, "image", L.AveragePooling((3, 2), **options))
        add("maxima" + name, "image", L.MaxPooling((3, 2), **options))
    for name, kind in (("image", "image"), ("sequence", "sequence"), ("vector", "vector")):
        add("layer normalization of a " + name, kind, L.LayerNormalization(epsilon=0.1))
    with C.default_options(map_rank=1, epsilon=0.5, normalization_time_constant=7):
        add("batch normalization by default options", "image", L.BatchNormalization())
        add("layer normalization by default options", "vector", L.LayerNormalization())
    with C.default_options(activation=C.relu, pad=True, init_bias=0.1):
        add("convolution by default options", "image", L.Convolution2D(3, 2))
    for name, options in (
        ("", {}),
        (", projected", {"cell_shape": 5}),
        (", stable", {"enable_self_stabilization": True}),
    ):
        add("lstm" + name, "sequence", L.Recurrence(L.LSTM(4, **options)))
        add("plain" + name, "sequence", L.Recurrence(L.RNNStep(4, **options)))
    add("peepholes", "sequence", L.Recurrence(L.LSTM(4, use_peepholes=True), initial_state=(0.3, 0.1)))
    add("gated", "sequence", L.Recurrence(L.GRU(4, enable_self_stabilization=True), go_backwards=True))
    add("fold", "sequence", L.Fold(L.GRU(4, activation=C.relu), go_backwards=True))
    add("sums", "sequence", L.Recurrence(C.plus, initial_state=1))
    add("delay", "sequence", L.Delay(-2, initial_state=0.5))
    add("window", "sequence", L.PastValueWindow(3, axis=-2))
    add("convolution along steps", "sequence", L.SequentialConvolution((3,), 2, C.relu, pad=True))
    add("convolution within steps", "sequence", L.SequentialConvolution(1, 2, strides=2))
    add("generated", "sequence", lambda x: L.UnfoldFrom(lambda h: (h * 2, h * 0.5 + 1))(C.sequence.first(x), x))
    add("attention", "sequence", lambda x: L.AttentionModel(4)(x, C.sequence.last(x)))
    add("stabilizer", "vector", L.Stabilizer(steepness=2))
    add("residual", "vector", L.ResNetBlock(L.Dense(3)))
    add("clique", "vector", L.SequentialClique([L.Dense(3), L.Dense(3)]))
    add("side by side", "vector", L.Sequential([(L.Dense(2), L.Dense(4)), C.splice]))
    return found


# ---- all of them ------------------------------------------------------------------------------------


def plain(value):
    """Return the value in JSON types. Floats that JSON lacks are words."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(value[key]) for key in value}
        return [plain(v) for v in value.values()]
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return str(value)
    return float("%.9g" % value) if isinstance(value, float) else value


if __name__ == "__main__":
    import cntk

    lines = [json.dumps(name) + ": " + json.dumps(plain(CASES[name](cntk)), sort_keys=True) for name in sorted(CASES)]
    with open(sys.argv[1], "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
