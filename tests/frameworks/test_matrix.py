"""Frameworks over our loader and over torch's. `cells` describes the promise of a cell of the matrix."""

from __future__ import annotations

import functools

import pytest

from tests.effort import EFFORT
from tests.frameworks import table
from tests.frameworks.cells import ROWS, WORKERS, WORLDS, judged, training
from tests.frameworks.run import run

MODULES = ("accelerate", "pytorch_lightning", "transformers", "torchdata")
needs_frameworks = pytest.mark.frameworks(*MODULES)


def tried(world):
    """What is tried in one go: rows with the same numbers of workers. FEEDLINE_EFFORT=2 or more tries all cells."""
    if EFFORT >= 2:
        return [(ROWS, WORKERS)]
    core = tuple(row for row in ROWS if row.core)
    others = tuple(row for row in ROWS if not row.core)
    return {1: [(core, (2,))], 2: [(core, WORKERS), (others, (0,))], 3: [(core, (0,))]}[world]


CELLS = [(row, world, count) for world in WORLDS for rows, workers in tried(world) for row in rows for count in workers]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the results of the cells with that number of processes."""

    @functools.cache
    def of(world):
        cells = {}
        for number, (rows, workers) in enumerate(tried(world)):
            cells |= judged(list(rows), world, workers, tmp_path_factory.mktemp(f"of-{world}-{number}"))
        return cells

    return of


@needs_frameworks
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("row", "world", "workers"), CELLS, ids=[f"{r.name}-{w}-{n}" for r, w, n in CELLS])
def test_a_cell_is_green(row, world, workers, found):
    assert found(world)[row.name, world, workers, "fresh"] == "equal"
    assert found(world)[row.name, world, workers, "resumed"] == row.resumes


@needs_frameworks
def test_another_seed_is_another_order(tmp_path):
    rows = [row for row in ROWS if row.core and row.loader == "feedline"]
    seeds = (3, 4)
    given = [training(row, "feedline", 1, 0, tmp_path, stop=None, seed=seed) for row in rows for seed in seeds]
    orders = [[batch[0] for batch in told[0]["fed"][0]] for told in run(1, given)]
    assert all(orders[i] != orders[i + 1] for i in range(0, len(orders), len(seeds)))


def test_the_page_has_the_table_of_these_cells():
    green = {
        (row.name, world, count, state): "equal" if state == "fresh" else row.resumes
        for row in ROWS
        for world in WORLDS
        for count in WORKERS
        for state in table.STATES
    }
    assert table.committed() == table.rendered(green)
