"""Losses and metrics, from their formulas: any targets, ties, one class, several samples at once."""

import itertools
import math

import numpy as np

from tests.compat.cntk_cases.case import Case, Fixed, Steps
from tests.compat.cntk_cases.elementwise import each, first_largest, log, slope_of_log

# Single precision, for operands of any precision.
EPSILON, ONE_AND_EPSILON = float(np.float32(1e-6)), float(np.float32(1 + 1e-6))

SCORES = np.array([[1, 2, 3], [3, 1, 0], [0.5, 0.5, 0.5], [-1, 3, 3], [40, 0, -40]])
TARGETS = np.array([[0, 0, 2], [0.2, 0.3, 0.5], [1, 1, 0], [0, 0, 0], [-1, 1, 3]])
ONE_HOT = np.eye(3)[[2, 0, 1, 1, 0]]
MATRIX = np.array([[[1, 2, 3], [3, 1, 0]], [[0, 0, 1], [2, 2, -1]]])
MATRIX_TARGETS = np.array([[[0, 0, 1], [0.2, 0.3, 0.9]], [[1, 1, 0], [0, 0, 0]]])
STEPS = Steps(SCORES[:1], SCORES[1:]), Steps(ONE_HOT[:1], TARGETS[1:])


def log_sum_exp(x, axis=-1):
    top = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top


def entropy(o, t):
    return np.array([log_sum_exp(o)[0] - o @ t])


def entropy_slopes(o, t):
    return np.exp(o - log_sum_exp(o)) - t, -o


def entropy_of_rows(o, t):
    return np.concatenate([entropy(a, b) for a, b in zip(o, t)])


def entropy_of_all_rows(o, t):
    """Every row of scores meets every row of targets."""
    return log_sum_exp(o) - o @ t.T


def entropy_along(axis):
    return lambda o, t: log_sum_exp(o, axis) - (o * t).sum(axis=axis, keepdims=True)


def by_rows(function):
    return lambda *steps: np.stack([function(*rows) for rows in zip(*steps)])


def slopes_by_rows(function):
    return lambda *steps: tuple(np.stack(s) for s in zip(*[function(*rows) for rows in zip(*steps)]))


def error(o, t):
    return np.array([1 - first_largest(o) @ t])


def error_slopes(o, t):
    return 0 * o, -first_largest(o)


def missed(top):
    def formula(o, t):
        wrong = 0
        for scores, target in zip(o, t):
            order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
            wrong += target.argmax() not in order[:top]
        return np.float64(wrong)

    return formula


def binary(p, t):
    return each(lambda p, t: -(t * log(p + EPSILON) + (1 - t) * log(ONE_AND_EPSILON - p)))(p, t)


def binary_slopes(p, t):
    return (
        each(lambda p, t: -t * slope_of_log(p + EPSILON) + (1 - t) * slope_of_log(ONE_AND_EPSILON - p))(p, t),
        each(lambda p, t: log(ONE_AND_EPSILON - p) - log(p + EPSILON))(p, t),
    )


def weighted(p, t, w):
    """Weights are scaled to a mean of 1 in the value, but not in the gradient."""
    each = -w * np.log(t * p + (1 - t) * (1 - p))
    return each.sum() * len(p) / w.sum()


def weighted_slopes(p, t, w):
    return w * (p - t) / (p * (1 - p)), 0 * t, 0 * w


def cosine(a, b):
    a, b = np.ravel(a), np.ravel(b)
    return np.float64(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def with_others(shift, others):
    def formula(a, b):
        n = len(a)
        return np.array(
            [[cosine(a[i], b[i])] + [cosine(a[i], b[(i + shift + k) % n]) for k in range(others)] for i in range(n)]
        )

    return formula


def edits(first, second, prices=(1, 1, 1)):
    """Return the edits along the cheapest way, by trying all. Of equal prices a substitution, then an insertion."""
    substitution, deletion, insertion = prices

    def at(i, j):
        if not i or not j:
            return (i * deletion + j * insertion, i + j)
        if first[i - 1] == second[j - 1]:
            return at(i - 1, j - 1)
        (s, a), (d, b), (n, c) = at(i - 1, j - 1), at(i - 1, j), at(i, j - 1)
        s, d, n = s + substitution, d + deletion, n + insertion
        return (s, a + 1) if s <= d and s <= n else (d, b + 1) if d < n else (n, c + 1)

    return at(len(first), len(second))[1]


def kept(rows, squash, ignored):
    labels = list(rows.argmax(axis=1))
    if squash:
        labels = [label for label, _ in itertools.groupby(labels)]
    return [label for label in labels if label not in ignored]


def edit_distance(prices=(1, 1, 1), squash=False, ignored=()):
    def formula(a, b):
        pairs = [(kept(x, squash, ignored), kept(y, squash, ignored)) for x, y in zip(a, b)]
        wrong = sum(edits(x, y, prices) for x, y in pairs)
        return np.float64(wrong * sum(len(x) for x in a) / sum(len(y) for _, y in pairs))

    return formula


def words(*sequences):
    return Steps(*[np.eye(4)[list(s)] for s in sequences])


FIRST, SECOND = words([0, 1, 1, 2], [3], [1, 2, 3]), words([0, 1, 3, 2], [3], [1, 1, 0])
WORDS = np.eye(4)[[0, 1, 2]], np.eye(4)[[1, 1, 2]]

GROUPS = np.array([[1.0], [1], [2], [2], [2], [5], [1], [1]])
GAINS = np.array([[7.0], [1], [3], [1], [1], [2], [0], [0]])
RANKS = np.array([[1], [2], [0.5], [4], [3], [1], [0.25], [2]])


def groups(group):
    begin = 0
    for i in range(1, len(group) + 1):
        if i == len(group) or group[i, 0] != group[begin, 0]:
            yield slice(begin, i)
            begin = i


def order(scores, gains):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], gains[i]))


def lambda_slopes(scores, gains, group):
    """The gradient of each pair, at the ranks that the scores have."""
    found = np.zeros_like(scores)
    for part in groups(group):
        s, g, into = scores[part, 0], gains[part, 0], found[part, 0]
        place = {sample: rank for rank, sample in enumerate(order(s, g))}
        ideal = sum(gain / math.log(2 + i) for i, gain in enumerate(sorted(g, reverse=True)))
        for i, j in itertools.product(range(len(s)), repeat=2):
            if ideal and g[i] > g[j]:
                change = (g[i] - g[j]) * abs(1 / math.log(2 + place[i]) - 1 / math.log(2 + place[j])) / ideal
                slope = -change / (1 + math.exp(s[i] - s[j]))
                into[i] += slope
                into[j] -= slope
    return found, 0 * gains, 0 * group


def lambda_loss(scores, gains, group):
    """Mean of 1 - NDCG of the groups, times 100 and the number of samples."""
    missing = []
    for part in groups(group):
        s, g = scores[part, 0], gains[part, 0]
        best = sum(gain / math.log(2 + i) for i, gain in enumerate(sorted(g, reverse=True)))
        got = sum(g[sample] / math.log(2 + i) for i, sample in enumerate(order(s, g)))
        missing.append(1 - got / best if best else 1)
    return np.float64(np.mean(missing) * 100 * len(scores))


def gain_of_the_first(scores, gains, group):
    """Mean over groups, of which one without gains counts as 0."""
    found = []
    for p in groups(group):
        s, g = scores[p, 0], gains[p, 0]
        found.append(g[order(s, g)[0]] / g.max() if g.max() else 0.0)
    return np.float64(np.mean(found) * 100 * len(scores))


def minus_log_of_alignments(blank, delay=None):
    """Sum over all paths that read as the labels, with repetitions and blanks, one by one.

    With a delay, the steps of a label come at most so long after its end.
    """

    def is_late(way, ends):
        label = -1
        for t, (before, k) in enumerate(itertools.pairwise([blank, *way])):
            label += k not in (blank, before)
            if k != blank and t > ends[label] + delay:
                return True
        return False

    def formula(labels, scores):
        total = 0.0
        for marks, steps in zip(labels, scores):
            begins = [i for i, row in enumerate(marks) if row.max() > 1 or i == 0]
            wanted, ends = [marks[i].argmax() for i in begins], [*begins[1:], len(marks)]
            logs = steps - log_sum_exp(steps)
            found = 0.0
            for way in itertools.product(range(steps.shape[1]), repeat=len(steps)):
                reads = [k for k, _ in itertools.groupby(way) if k != blank]
                if reads == wanted and (delay is None or not is_late(way, ends)):
                    found += math.exp(sum(row[k] for row, k in zip(logs, way)))
            total -= math.log(found)
        return np.float64(total)

    return formula


def spoken(labels, steps):
    marks = np.zeros((steps, 3))
    for i, label in enumerate(labels):
        marks[i, label] = 2
    marks[len(labels) :, labels[-1]] = 1
    return marks


UTTERANCES = (
    Steps(spoken([0, 1], 4), spoken([1, 1], 4), spoken([0], 1)),
    Steps(SCORES[:4], SCORES[1:5][::-1] / 20, SCORES[:1]),
)


def f_measure(beta, axes=None):
    def formula(found, there):
        hits = (found * there).sum(axis=axes, keepdims=axes is not None)
        precision = hits / found.sum(axis=axes, keepdims=axes is not None)
        recall = hits / there.sum(axis=axes, keepdims=axes is not None)
        return 1 - (1 + beta**2) * precision * recall / (beta**2 * precision + recall)

    return formula


def of_noise(samples):
    """With one class, which is drawn each time."""
    prior = math.log(samples)

    def formula(w, b, x):
        s = w[0] @ x + b[0, 0]
        return np.logaddexp(s, prior) - s + samples * np.logaddexp(s, prior) - samples * prior

    return formula


P = np.array([[0.2, 0.7, 0.5], [0.01, 0.99, 0.25]])
T = np.array([[0, 1, 0.3], [1, 2, -1]])

TABLE = {
    "cross_entropy_with_softmax": [
        Case([SCORES, TARGETS], entropy, slopes=entropy_slopes),
        Case([SCORES, ONE_HOT], entropy, slopes=entropy_slopes),
        Case([[[5], [5], [-3]], [[1], [2], [0]]], entropy, slopes=entropy_slopes),
        Case([SCORES[:1], ONE_HOT[:1]], entropy, slopes=entropy_slopes),
        Case(list(STEPS), by_rows(entropy), slopes=slopes_by_rows(entropy_slopes)),
        Case([MATRIX, MATRIX_TARGETS], entropy_of_all_rows),
        Case([MATRIX, MATRIX_TARGETS], entropy_along(0), axis=0),
        Case([MATRIX, MATRIX_TARGETS], entropy_along(1), axis=1),
        Case([SCORES, Fixed(TARGETS[0])], entropy, slopes=entropy_slopes, cntk=False),
    ],
    "classification_error": [
        Case([SCORES, TARGETS], error, slopes=error_slopes),
        Case([SCORES, ONE_HOT], error, slopes=error_slopes),
        Case([[[5], [5]], [[1], [0]]], error, slopes=error_slopes),
        Case([SCORES, ONE_HOT], missed(2), slopes=False, whole=True, typed=(), topN=2),
        Case(list(STEPS), by_rows(error), slopes=slopes_by_rows(error_slopes)),
    ],
    "binary_cross_entropy": [
        Case([P, T], binary, slopes=binary_slopes),
        Case([P[:, :1], T[:, :1]], binary, slopes=binary_slopes),
        Case([P[:, 0], T[:, 0]], binary, slopes=binary_slopes),
        Case([[[0, 1, 0, 1]], [[0, 1, 1, 0]]], binary, slopes=binary_slopes, only=(np.float64,)),
        Case([Steps(P[:1], P), Steps(T[:1], T)], binary, slopes=binary_slopes),
    ],
    "weighted_binary_cross_entropy": [
        Case(
            [[[0.2], [0.7], [0.4]], [[0], [1], [1]], [[2], [3], [1]]],
            weighted,
            slopes=weighted_slopes,
            given=(1, 2),
            whole=True,
            typed=(),
        ),
        Case([[[0.2]], [[1]], [[2]]], weighted, slopes=weighted_slopes, given=(1, 2), whole=True, typed=()),
    ],
    "squared_error": [
        Case([P, T], lambda a, b: ((a - b) ** 2).sum()),
        Case([MATRIX, MATRIX_TARGETS], lambda a, b: ((a - b) ** 2).sum()),
        Case([P[:, 0], T[:, 0]], lambda a, b: (a - b) ** 2),
        Case([P, Fixed(T[0])], lambda a, b: ((a - b) ** 2).sum()),
        Case([Steps(P[:1], P), Steps(T[:1], T)], lambda a, b: ((a - b) ** 2).sum(axis=1)),
    ],
    "cosine_distance": [
        Case([P, T], cosine),
        Case([SCORES, SCORES], cosine),
        Case([[[2], [-3]], [[4], [1]]], cosine),
    ],
    "cosine_distance_with_negative_samples": [
        Case(
            [SCORES, SCORES[::-1] + 0.5], with_others(s, n), whole=True, typed=(n + 1,), shift=s, num_negative_samples=n
        )
        for s, n in ((1, 2), (2, 3), (3, 1))
    ],
    "edit_distance_error": [
        Case([FIRST, SECOND], edit_distance(), slopes=False, whole=True, typed=()),
        Case(
            list(WORDS),
            lambda a, b: edit_distance((1, 1, 1), True, (0,))([x[None] for x in a], [y[None] for y in b]),
            slopes=False,
            whole=True,
            typed=(),
            squashInputs=True,
            tokensToIgnore=[0],
        ),
        Case(
            [FIRST, SECOND],
            edit_distance((0, 1, 1), True, (1,)),
            slopes=False,
            whole=True,
            typed=(),
            subPen=0,
            delPen=1,
            insPen=1,
            squashInputs=True,
            tokensToIgnore=[1],
        ),
        Case([FIRST, SECOND], edit_distance((3, 1, 2)), slopes=False, whole=True, typed=(), subPen=3, insPen=2),
    ],
    "labels_to_graph": [Case([UTTERANCES[0]], lambda x: x, slopes=False)],
    "forward_backward": [
        Case(
            list(UTTERANCES),
            minus_log_of_alignments(2),
            call=lambda C, labels, scores: C.forward_backward(C.labels_to_graph(labels), scores, 2),
            whole=True,
            typed=(),
            given=(0,),
        ),
        *(
            Case(
                list(UTTERANCES),
                minus_log_of_alignments(2, delay),
                call=lambda C, labels, scores, delay=delay: C.forward_backward(labels, scores, 2, delay),
                whole=True,
                typed=(),
                given=(0,),
                cntk=False,  # it bounds the last blank by memory of something else
            )
            for delay in (0, 1, 2, 9)
        ),
    ],
    "fmeasure": [
        Case([P, T + 2], f_measure(1)),
        Case([P, T + 2], f_measure(2), beta=2),
        Case(
            [np.arange(24).reshape(2, 3, 2, 2) % 7 + 1, np.arange(24).reshape(2, 3, 2, 2) % 5 + 1],
            f_measure(0.5, (1, 2)),
            beta=0.5,
        ),
    ],
    "nce_loss": [
        Case(
            [Fixed([[0.1, -0.2, 0.3]]), Fixed([[0.3]]), SCORES],
            of_noise(n),
            call=lambda C, w, b, x, n=n: C.nce_loss(
                w, b, x, C.constant(np.ones(1), dtype=x.dtype), np.ones(1, x.dtype), n
            ),
            typed=(),
            cntk=False,  # labels have to be data
        )
        for n in (1, 2, 5)
    ],
    "lambda_rank": [
        Case([RANKS, GAINS, GROUPS], lambda_loss, slopes=lambda_slopes, given=(1, 2), whole=True, typed=()),
        Case([RANKS[:1], GAINS[:1], GROUPS[:1]], lambda_loss, slopes=lambda_slopes, given=(1, 2), whole=True, typed=()),
    ],
    "ndcg_at_1": [
        Case([RANKS, gains, GROUPS], gain_of_the_first, slopes=False, whole=True, typed=())
        for gains in (GAINS, GAINS + 1)
    ],
}
