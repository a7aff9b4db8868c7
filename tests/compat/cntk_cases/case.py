"""Cases of the oracle: operands, an operator under CNTK's names, and its formula in NumPy.

The tables are a program that CNTK 2.7 runs, too (Python 3.6): ``python -m tests.compat.cntk_cases`` under CNTK prints
every case whose formula differs from CNTK. So the formulas are checked against the original, and the façade against
the formulas. Hence no new syntax here, and no strict zip.
"""

import numpy as np

STEP = 1e-5


class Steps:
    """Sequences of an operand, an array (steps, *sample) for each."""

    def __init__(self, *arrays):
        self.arrays = [np.asarray(a, np.float64) for a in arrays]


class Fixed:
    """An operand without a batch axis: a parameter."""

    def __init__(self, array):
        self.array = np.asarray(array, np.float64)


class Case:
    """One call of an operator.

    Attributes:
        operands: arrays (samples, *sample), `Steps` and `Fixed`.
        formula: the operator in NumPy, in double precision: of one sample of each operand, or of the steps of one
            sequence of each. A `Fixed` operand is passed to each call.
        call: ``call(C, *variables)``. None: the operator of the table's name, with ``settings``.
        slopes: gradients of the sum of the results by each operand, of the same operands as the formula. None: by
            central differences of the formula. 0: there are none, CNTK has zeros.
        whole: whether the formula takes the whole operands, lists of arrays for sequences, and gives the whole result.
        typed: shape of the function in CNTK. None: the shape of the formula's result.
        only: element types, if not both.
        sparse: operands, by number, that are fed and declared sparse.
        given: operands, by number, that have no gradient.
        cntk: False where CNTK fails, or has another number by a defect that the table of names describes.
    """

    def __init__(
        self,
        operands,
        formula,
        call=None,
        slopes=None,
        whole=False,
        typed=None,
        only=None,
        sparse=(),
        given=(),
        cntk=True,
        **settings,
    ):
        self.operands = [o if isinstance(o, (Steps, Fixed)) else np.asarray(o, np.float64) for o in operands]
        self.formula, self.call, self.slopes, self.whole = formula, call, slopes, whole
        self.typed, self.only, self.sparse, self.given = typed, only, sparse, given
        self.cntk, self.settings, self._gradients = cntk, settings, None

    @property
    def constant(self):
        return (*self.sparse, *self.given) if self.slopes is not False else tuple(range(len(self.operands)))

    # ---- by the formula -------------------------------------------------------------------------------

    @property
    def plain(self):
        return [o.arrays if isinstance(o, Steps) else o.array if isinstance(o, Fixed) else o for o in self.operands]

    def _calls(self, operands):
        """Operands of each call of the formula."""
        if self.whole:
            return [tuple(operands)]
        counts = [len(x) for x, o in zip(operands, self.operands) if not isinstance(o, Fixed)]
        if not counts:
            return [tuple(operands)]
        return [
            tuple(x if isinstance(o, Fixed) else x[i] for x, o in zip(operands, self.operands))
            for i in range(counts[0])
        ]

    def value(self, operands=None):
        """Result of the formula: an array, or a list of them for sequences or samples."""
        found = [self.formula(*given) for given in self._calls(self.plain if operands is None else operands)]
        return found[0] if self.whole or all(isinstance(o, Fixed) for o in self.operands) else found

    def gradients(self):
        """Return the gradients by each operand, computed once."""
        if self._gradients is None:
            self._gradients = self._computed()
        return self._gradients

    def _computed(self):
        if self.slopes is None:
            return [None if i in self.constant else self._differences(i) for i in range(len(self.operands))]
        if callable(self.slopes):
            calls = [self.slopes(*given) for given in self._calls(self.plain)]
            if self.whole:
                return list(calls[0])
            return [
                sum(c[i] for c in calls) if isinstance(o, Fixed) else [c[i] for c in calls]
                for i, o in enumerate(self.operands)
            ]
        return [
            [np.zeros_like(a) for a in x] if isinstance(o, Steps) else np.zeros_like(x)
            for x, o in zip(self.plain, self.operands)
        ]

    def _differences(self, i):
        def total(x):
            operands = list(self.plain)
            operands[i] = x
            return sum(np.sum(np.asarray(v)) for v in parts(self.value(operands)))

        def by(array, put):
            found = np.empty_like(array)
            for at in np.ndindex(array.shape):
                ends = []
                for step in (STEP, -STEP):
                    moved = array.copy()
                    moved[at] += step
                    ends.append(total(put(moved)))
                found[at] = (ends[0] - ends[1]) / (2 * STEP)
            return found

        x = self.plain[i]
        if not isinstance(x, list):
            return by(x, lambda a: a)
        return [by(a, lambda m, k=k: x[:k] + [m] + x[k + 1 :]) for k, a in enumerate(x)]

    # ---- under CNTK's names ---------------------------------------------------------------------------

    def make(self, C, name, dtype):
        """Return the function, its variables, and their data."""
        variables, fed = [], {}
        for i, o in enumerate(self.operands):
            sparse = i in self.sparse
            kind = {"dtype": dtype, "needs_gradient": i not in self.constant, "is_sparse": sparse}
            if isinstance(o, Fixed):
                v = (
                    C.parameter(init=o.array.astype(dtype))
                    if o.array.ndim
                    else C.parameter((), init=o.array, dtype=dtype)
                )
            elif isinstance(o, Steps):
                v = C.sequence.input_variable(o.arrays[0].shape[1:], **kind)
                fed[v] = [rows(a.astype(dtype), sparse) for a in o.arrays]
            else:
                v = C.input_variable(o.shape[1:], **kind)
                fed[v] = rows(o.astype(dtype), sparse)
            variables.append(v)
        if self.call is not None:
            return self.call(C, *variables), variables, fed
        where = C
        for part in name.split(".")[:-1]:
            where = getattr(where, part)
        return getattr(where, name.split(".")[-1])(*variables, **self.settings), variables, fed


def rows(array, sparse):
    if not sparse:
        return array
    import scipy.sparse

    return scipy.sparse.csr_matrix(array)


def parts(value):
    """A result, or the results of samples or sequences."""
    return value if isinstance(value, list) else [value]


def run(C, case, name, dtype):
    """Value, shape, and gradients by operand (None where there is none to ask for)."""
    f, variables, fed = case.make(C, name, dtype)
    value = f.eval(fed)
    asked = [v for i, v in enumerate(variables) if i not in case.constant]
    gradients = f.grad(fed, wrt=asked) if asked else {}
    if len(asked) == 1 and not isinstance(gradients, dict):
        gradients = {asked[0]: gradients}
    return value, tuple(f.shape), [gradients.get(v) for v in variables]


def problems(C, name, case, dtype):
    """Differences between the formula and what an implementation of CNTK's names gives."""
    found = []
    loose = dtype is np.float32
    try:
        value, shape, gradients = run(C, case, name, dtype)
    except Exception as error:
        return ["%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:200])]
    expected = case.value()
    one = parts(expected)
    wanted = case.typed if case.typed is not None else np.shape(one[0])[1 if of_steps(case, expected, value) else 0 :]
    if tuple(shape) != tuple(wanted):
        found.append("shape %s, by the formula %s" % (shape, wanted))
    found += differ("value", value, expected, 2e-5 if loose else 1e-9)
    if case.slopes is not False:
        for i, (mine, by_formula) in enumerate(zip(gradients, case.gradients())):
            if mine is not None:
                tolerance = (1e-4 if loose else 1e-6) if case.slopes is None else (2e-5 if loose else 1e-9)
                found += differ("gradient %d" % i, mine, by_formula, tolerance)
    return found


def of_steps(case, expected, value):
    """Whether results are sequences: CNTK hands those out as a list."""
    return isinstance(value, list) and isinstance(expected, list)


def differ(what, mine, expected, tolerance):
    mine, expected = [[np.asarray(a) for a in parts(x)] for x in (mine, expected)]
    if len(mine) == 1 and len(expected) != 1:
        mine = list(mine[0])
    if len(expected) == 1 and len(mine) != 1:
        expected = list(expected[0])
    if len(mine) != len(expected):
        return ["%s: %d results, by the formula %d" % (what, len(mine), len(expected))]
    found = []
    for a, b in zip(mine, expected):
        if a.size == b.size and a.shape != b.shape:
            a = a.reshape(b.shape)  # a sequence axis of one step, a batch of one: what CNTK leaves out
        if a.shape != b.shape:
            found.append("%s: shape %s, by the formula %s" % (what, a.shape, b.shape))
        elif not np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            found.append("%s: %s, by the formula %s" % (what, flat(a), flat(b)))
    return found[:1]


def flat(a):
    return " ".join("%.7g" % v for v in np.ravel(a)[:12])
