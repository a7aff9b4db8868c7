"""Names of torch's DataLoader with an underscore that frameworks read, and methods that their subclasses replace."""

from __future__ import annotations

import pytest

from tests.feed.loader.swapped import Numbers, Stream, both, flat, torch, workers

pytestmark = both

from torch.utils.data import _DatasetKind  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter, _InfiniteConstantSampler  # noqa: E402


@workers
def test_iter_goes_through_get_iterator(Loader, workers):
    """As graph libraries do, to filter batches."""

    class Doubling(Loader):
        def _get_iterator(self):
            return (2 * batch for batch in super()._get_iterator())

    loader = Doubling(Numbers(5), num_workers=workers)
    assert flat(loader) == flat(loader) == [0, 2, 4, 6, 8]


def test_what_the_workers_are_asked_for(Loader):
    loader = Loader(Numbers(5), batch_size=2)
    assert loader._index_sampler is loader.batch_sampler
    assert list(loader._index_sampler) == [[0, 1], [2, 3], [4]]
    single = Loader(Numbers(5), batch_size=None)
    assert single._index_sampler is single.sampler
    assert (loader._auto_collation, single._auto_collation) == (True, False)
    assert (loader._dataset_kind, Loader(Stream())._dataset_kind) == (_DatasetKind.Map, _DatasetKind.Iterable)
    assert isinstance(Loader(Stream()).sampler, _InfiniteConstantSampler)


@workers
def test_iterators_are_of_torchs_class(Loader, workers):
    loader = Loader(Numbers(5), num_workers=workers)
    assert loader._iterator is None
    iterator = iter(loader)
    assert isinstance(iterator, _BaseDataLoaderIter)
    assert flat(iterator) == [0, 1, 2, 3, 4]


def test_the_length_that_len_returned(Loader):
    loader = Loader(Stream(10, length=10), batch_size=3)
    assert loader._IterableDataset_len_called is None
    assert len(loader) == 4
    assert loader._IterableDataset_len_called == 10


def test_the_number_of_workers_is_checked_when_asked(Loader, monkeypatch):
    Loader(Numbers()).check_worker_number_rationality()
    loader = Loader(Numbers(), num_workers=1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set())
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 0, raising=False)
    with pytest.warns(UserWarning, match="worker"):
        loader.check_worker_number_rationality()


def test_the_flag_between_which_attributes_may_be_set(Loader):
    """timm's loaders lift it to repeat the sampler."""
    loader = Loader(Numbers(4), batch_size=2)
    assert loader._DataLoader__initialized
    loader._DataLoader__initialized = False
    loader.batch_sampler = [[3], [0, 1]]
    loader._DataLoader__initialized = True
    assert [batch.tolist() for batch in loader] == [[3], [0, 1]]
    with pytest.raises(ValueError, match="batch_sampler"):
        loader.batch_sampler = [[2]]


def test_the_context_under_its_mangled_name(Loader):
    assert Loader(Numbers())._DataLoader__multiprocessing_context is None
    context = torch.multiprocessing.get_context("fork")
    assert Loader(Numbers(), num_workers=1, multiprocessing_context=context)._DataLoader__multiprocessing_context is (
        context
    )
