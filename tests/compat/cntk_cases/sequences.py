"""Operators along sequences: of different lengths, of one step, and one sequence alone."""

import numpy as np

from tests.compat.cntk_cases.case import Case, Steps

A = np.array([[1, -2], [3, 0.5], [3, 2], [-1, 4]])
RAGGED = Steps(A[:3], A[1:2], A)
ALONE = Steps(A[:1])
MARKS = Steps([[0], [1], [1]], [[1]], [[1], [0], [0], [1]])
REPEATS = Steps([[2], [0], [1]], [[3]], [[0], [1], [2], [1]])
SIGNED = Steps([[1], [-1], [1]], [[0.25]], [[1], [0.5], [0.5], [-1]])
FRACTIONS = Steps([[1.2]] * 10, [[1 / 3.0]] * 9, [[0.5], [0.3], [-1], [2]])
EACH = np.array([[1, 2], [3, 4], [5, 6.0]])


def delayed(steps, initial=0.0):
    def formula(x):
        y = np.full_like(x, initial)
        for t in range(len(x)):
            if 0 <= t - steps < len(x):
                y[t] = x[t - steps]
        return y

    return formula


def delays(name, sign):
    return [
        Case([RAGGED], delayed(sign)),
        Case([ALONE], delayed(sign)),
        Case([RAGGED], delayed(sign, 0.5), initial_state=0.5),
        Case([RAGGED], delayed(2 * sign), time_step=2),
        Case([RAGGED], delayed(5 * sign, -1), time_step=5, initial_state=-1),
    ]


def taken(condition, epsilon=1e-7):
    """Steps, one by one, so that there are as many as the condition adds up to."""
    found, wanted = [], 0.0
    for step, repeats in enumerate(condition.ravel()):
        wanted += repeats
        while (not found and wanted > 0) or len(found) < wanted * (1 - epsilon):
            found.append(step)
    return found


def mark(x, condition):
    return x[taken(condition)]


def unmark(x, condition):
    y = np.zeros_like(x)
    for step in taken(condition):
        y[step] += x[step]
    return y


def counts(x, condition):
    return 0 * x + np.bincount(taken(condition), minlength=len(x))[:, None], 0 * condition


def softmax(x):
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def ends(at):
    def slope(x):
        y = np.zeros_like(x)
        y[at] = 1
        return (y,)

    return slope


def is_end(at):
    def formula(x):
        y = np.zeros(len(x))
        y[at] = 1
        return y

    return formula


def sliced(begin, end):
    return lambda x: x[begin : end or None]


TABLE = {
    "sequence.first": [Case([RAGGED], lambda x: x[0]), Case([ALONE], lambda x: x[0])],
    "sequence.last": [Case([RAGGED], lambda x: x[-1]), Case([ALONE], lambda x: x[-1])],
    "sequence.is_first": [Case([RAGGED], is_end(0), slopes=0), Case([ALONE], is_end(0), slopes=0)],
    "sequence.is_last": [Case([RAGGED], is_end(-1), slopes=0), Case([ALONE], is_end(-1), slopes=0)],
    "sequence.past_value": delays("past_value", 1),
    "sequence.future_value": delays("future_value", -1),
    "sequence.delay": delays("delay", 1)
    + [
        Case([RAGGED], delayed(-2, 3), time_step=-2, initial_state=3),
        Case([RAGGED], lambda x: x, time_step=0, cntk=False),
    ],
    "sequence.softmax": [
        Case([Steps(*[a[:, :1] for a in RAGGED.arrays])], softmax),
        Case([Steps([[1000], [0]], [[-1000]])], softmax),
    ],
    "sequence.broadcast_as": [
        Case(
            [EACH, RAGGED],
            lambda x, like: np.repeat(x[None], len(like), 0),
            slopes=lambda x, like: (0 * x + len(like), 0 * like),
        )
    ],
    "sequence.where": [
        Case([marks], lambda c: np.array(taken(c), float), slopes=False, typed=()) for marks in (MARKS, REPEATS)
    ]
    + [Case([FRACTIONS], lambda c: np.array(taken(c), float), slopes=False, typed=(), only=(np.float32,))],
    "sequence.gather": [Case([RAGGED, marks], mark, slopes=counts) for marks in (MARKS, REPEATS, SIGNED)],
    "sequence.scatter": [
        Case(
            [RAGGED, marks],
            unmark,
            call=lambda C, x, c: C.sequence.scatter(C.sequence.gather(x, c), c),
            slopes=counts,
        )
        for marks in (MARKS, REPEATS, SIGNED)
    ],
    "sequence.slice": [
        Case([RAGGED], sliced(0, 1), begin_index=0, end_index=1, typed=(2,)),
        Case([Steps(A[:3], A)], sliced(1, 3), begin_index=1, end_index=3),
        Case([Steps(A[:3], A)], sliced(-2, 0), begin_index=-2, end_index=0),
        Case([Steps(A[:3], A)], sliced(1, -1), begin_index=1, end_index=-1),
    ],
    "sequence.unpack": [
        Case(
            [RAGGED],
            lambda x: np.concatenate([x, np.full((4 - len(x), 2), 7)]),
            call=lambda C, x: C.sequence.unpack(x, 7, True),
            typed=(-3, 2),
        ),
        Case(
            [RAGGED],
            lambda x: 1.0 * (np.arange(4) < len(x)),
            call=lambda C, x: C.combine([C.sequence.unpack(x, 7).outputs[1]]),
            slopes=False,
            typed=(-3,),
        ),
    ],
}
