"""Hugging Face datasets over our loader as over torch's: by index and streamed, fresh and resumed."""

from __future__ import annotations

import pytest

from tests.frameworks.comparing import Cells, by_epoch_alone, counts, numbers_of_workers, samples, steps, worlds

pytestmark = pytest.mark.frameworks("datasets")

BY_INDEX = ["formatted", "transformed", "split"]
STREAMED = ["streamed", "shuffled", "without_epochs", "from_rows"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return Cells("hugging_datasets", tmp_path_factory.mktemp("hugging_datasets"))


@pytest.mark.parametrize("program", [*BY_INDEX, *STREAMED])
@worlds
def test_fed_as_by_torchs_loader(cells, program, world):
    expected, told = (cells.of(program, loader, world, "fresh 0") for loader in ("torch", "feedline"))
    assert steps(told) == steps(expected)
    assert counts(told) == counts(expected)
    if by_epoch_alone(cells, program, world):
        assert samples(told) == samples(expected)


@pytest.mark.parametrize("program", BY_INDEX)
@worlds
def test_workers_change_nothing(cells, program, world):
    here, elsewhere = (cells.of(program, "feedline", world, f"fresh {workers}") for workers in (0, 2))
    assert elsewhere == here


@pytest.mark.parametrize("program", STREAMED)
@worlds
def test_workers_share_out_the_shards(cells, program, world):
    here, elsewhere = (cells.of(program, "feedline", world, f"fresh {workers}") for workers in (0, 2))
    assert counts(elsewhere) == counts(here)


@pytest.mark.parametrize("program", [*BY_INDEX, *STREAMED])
@worlds
@numbers_of_workers
def test_on_from_a_state_in_the_middle_of_an_epoch(cells, program, world, workers):
    left, told = cells.left(program, world, workers), cells.of(program, "feedline", world, f"resumed {workers}")
    if program in STREAMED and not workers:  # their random numbers are the loop's
        left, told = samples(left), samples(told)
    if program == "shuffled" and not workers:
        # The state of datasets leaves out the rows of the buffer. torchdata's loader loses the same rows.
        left, told = ([rank[1:] for rank in each] for each in (left, told))
    assert told == left
