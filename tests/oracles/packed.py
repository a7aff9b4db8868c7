"""Documents in rows, slow and obvious: every row is looked at for every document."""

from __future__ import annotations


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
    rooms, changed = [], []  # of each row: what is left, and when it last took a document
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
