"""Documents in rows, slow and obvious: every row is looked at for every document."""

from __future__ import annotations

import itertools


def best_fit(lengths, row, order=None):
    """The row and the offset of each document, and the number of rows."""
    order = range(len(lengths)) if order is None else order

    def choose(rooms, changed, length):
        fits = [r for r, room in enumerate(rooms) if room >= length]
        return min(fits, key=lambda r: (rooms[r], -changed[r]), default=len(rooms))

    return _place(sorted(order, key=lambda d: -lengths[d]), lengths, row, choose)


def first_fit(lengths, row, order=None):
    """The same in the given order, each into the first row that has room."""
    order = range(len(lengths)) if order is None else order

    def choose(rooms, changed, length):
        return next((r for r, room in enumerate(rooms) if room >= length), len(rooms))

    return _place(order, lengths, row, choose)


def _place(documents, lengths, row, choose):
    rooms, changed = [], []  # of each row: its free space, and when it last took a document
    places = [(0, 0)] * len(lengths)
    for time, document in enumerate(documents):
        r = choose(rooms, changed, lengths[document])
        if r == len(rooms):
            rooms.append(row)
            changed.append(time)
        places[document] = r, row - rooms[r]
        rooms[r] -= lengths[document]
        changed[r] = time
    return [r for r, _ in places], [offset for _, offset in places], len(rooms)


def row_contents(rows, offsets, count):
    """Where each row starts among the documents by row and offset, and these documents."""
    documents = sorted(range(len(rows)), key=lambda d: (rows[d], offsets[d], d))
    return [sum(r < k for r in rows) for k in range(count + 1)], documents


def packed_rows(tokens, pieces, count, row, pad=0, ignore=-100):
    """Tokens, labels, segments and positions of each place, the sequences' bounds, their number before each row, and
    the longest. A piece is (row, offset, start, length, position, whether it goes on).
    """
    places = [(pad, ignore, 0, 0) for _ in range(count * row)]
    owners = [(place // row, None) for place in range(count * row)]
    for i, (r, offset, start, length, position, goes_on) in enumerate(pieces):
        segment = sum(other[0] == r for other in pieces[: i + 1])
        for k in range(length):
            follows = k + 1 < length or goes_on
            label = tokens[start + k + 1] if follows else ignore
            places[r * row + offset + k] = (tokens[start + k], label, segment, position + k)
            owners[r * row + offset + k] = (r, i)
    begins = [p for p, owner in enumerate(owners) if p == 0 or owner != owners[p - 1]]
    bounds = [*begins, count * row]
    tables = [[[place[k] for place in places[r * row : (r + 1) * row]] for r in range(count)] for k in range(4)]
    before = [sum(begin < r * row for begin in begins) for r in range(count + 1)]
    return *tables, bounds, before, max((b - a for a, b in itertools.pairwise(bounds)), default=0)


def packed_values(values, pieces, count, row, fill):
    """Another stream's rows."""
    rows = [[fill] * row for _ in range(count)]
    for r, offset, start, length, *_ in pieces:
        rows[r][offset : offset + length] = values[start : start + length]
    return rows
