"""The loaders of timm and of torchvision's training scripts: over ours as over torch's, and resumed exactly."""

from __future__ import annotations

import os
import sys

import pytest

from tests.docs.pages import ROOT
from tests.frameworks.comparing import Cells, by_epoch_alone, counts, numbers_of_workers, samples, steps, worlds
from tests.warm import run

pytestmark = pytest.mark.frameworks("timm", "torchvision")

TIMM = ["timm_train", "timm_no_prefetcher", "timm_multi_epochs", "timm_repeated", "timm_scheduled", "timm_eval"]
TORCHVISION = ["classification", "repeated", "detection", "detection_in_batches", "segmentation", "evaluation"]
programs = pytest.mark.parametrize("program", [*TIMM, *TORCHVISION])

#: Random numbers that are drawn by the loop, in the main process, as timm's prefetcher does to erase.
LOOP_DRAWS = {"timm_train", "timm_multi_epochs"}
#: Its sampler draws from torch's generator, of which persistent workers take a seed in the first epoch only, as torch's
#: do: alone, later epochs have an order for each kind of workers.
DRAWS_AFTER_WORKERS = {"timm_scheduled"}
#: What fills the last batches depends on the order.
FILLED = {"detection"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return Cells("pictures", tmp_path_factory.mktemp("pictures"))


@pytest.mark.frameworks("datasets")
def test_the_page_runs(tmp_path):
    page = ROOT / "docs" / "how-to" / "pictures-and-datasets.md"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    ran = run(
        ["-m", "tests.frameworks.page", str(page)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


@programs
@worlds
def test_fed_as_by_torchs_loader(cells, program, world):
    expected, told = (cells.of(program, loader, world, "fresh 0") for loader in ("torch", "feedline"))
    assert steps(told) == steps(expected)
    if program not in FILLED:
        assert counts(told) == counts(expected)
    if by_epoch_alone(cells, program, world):
        assert samples(told) == samples(expected)
    if program not in ("timm_eval", "evaluation"):
        assert all(first != second for first, second in samples(told))


@programs
@worlds
def test_workers_change_nothing(cells, program, world):
    here, elsewhere = (cells.of(program, "feedline", world, f"fresh {workers}") for workers in (0, 2))
    if program in DRAWS_AFTER_WORKERS and world == 1:
        here, elsewhere = ([rank[:1] for rank in each] for each in (here, elsewhere))
    assert elsewhere == here  # augmentation, too


@programs
@worlds
def test_begun_at_a_later_epoch(cells, program, world):
    """``--resume`` of the scripts: the order of that epoch again, wherever torch's loader gives it."""
    told = samples(cells.of(program, "feedline", world, "second 0"))
    if by_epoch_alone(cells, program, world):
        assert told == samples(cells.of(program, "torch", world, "second 0"))


@programs
@worlds
@numbers_of_workers
def test_on_from_a_state_in_the_middle_of_an_epoch(cells, program, world, workers):
    """With another number of workers than before, and the very same augmentation."""
    left, told = cells.left(program, world, workers), cells.of(program, "feedline", world, f"resumed {workers}")
    if program in LOOP_DRAWS:
        left, told = samples(left), samples(told)
    if program == "timm_multi_epochs":  # it counts its epochs from where it begins
        left, told = ([[batch for epoch in rank for batch in epoch] for rank in each] for each in (left, told))
        told = [rank[: len(left[0])] for rank in told]
    if program in DRAWS_AFTER_WORKERS and world == 1:
        left, told = ([rank[:1] for rank in each] for each in (left, told))
    assert told == left
