"""Subclasses whose own attributes have the names of arguments that only our loader has."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import RandomSampler

import feedline as fl
from tests.programs.comparing import as_torch, torch

NAMES = ("seed", "workers", "partition", "on_error", "device", "transforms", "snapshot_every_n_steps", "progress")


class Here:
    """A value that none of our arguments takes."""


HERE = Here()


def set_early(loader_class, name):
    class Early(loader_class):
        def __init__(self, *arguments, **options) -> None:
            setattr(self, name, None)
            setattr(self, name, HERE)
            super().__init__(*arguments, **options)

    return Early


def computed(loader_class, name):
    return type("Computed", (loader_class,), {name: property(lambda _: HERE)})


def constant(loader_class, name):
    return type("Constant", (loader_class,), {name: HERE})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [set_early, computed, constant])
def test_a_subclass_keeps_the_meaning_of_its_own_names(kind, name):
    def program(loader_class):
        sampler = RandomSampler(range(8), generator=torch.Generator().manual_seed(1))
        loader = kind(loader_class, name)(range(8), batch_size=3, sampler=sampler)
        fed = [getattr(loader, name), *loader]
        loader.timeout = 0
        fed += [*loader, getattr(copy.copy(loader), name)]
        if kind is not computed:
            setattr(loader, name, "elsewhere")
            fed += [*loader, getattr(loader, name)]
        return fed

    as_torch(program)


def test_the_argument_takes_effect_beside_the_name():
    def fed(loader_class, **options):
        return [batch.tolist() for batch in loader_class(range(12), batch_size=4, shuffle=True, **options)]

    assert fed(computed(fl.DataLoader, "seed"), seed=5) == fed(fl.DataLoader, seed=5) != fed(fl.DataLoader, seed=6)
    shares = [fed(constant(fl.DataLoader, "partition"), seed=5, partition=(rank, 2)) for rank in range(2)]
    assert sorted(index for share in shares for batch in share for index in batch) == list(range(12))


def test_a_loader_that_is_initialized_again_has_no_names_of_its_own():
    loader = fl.DataLoader(range(12), batch_size=4, shuffle=True, seed=5)
    loader.__init__(range(12), batch_size=4, shuffle=True, seed=6)
    assert loader.seed == 6
    loader.seed = 5
    assert [batch.tolist() for batch in loader] == [
        batch.tolist() for batch in fl.DataLoader(range(12), batch_size=4, shuffle=True, seed=5)
    ]
