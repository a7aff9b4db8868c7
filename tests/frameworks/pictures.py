"""How timm and torchvision's training scripts build their loaders, and how those scripts would write them.

A program returns a `Made`; `tests.frameworks.at_once` runs it over torch's DataLoader and over ours. Picture ``i`` is
its own label, so that a batch shows its pictures.
"""

from __future__ import annotations

import importlib
import random
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from tests.frameworks.at_once import Cell, Made

COUNT, BATCH = 26, 4


def prepare() -> None:
    """Import what takes long, once for all ranks."""
    importlib.import_module("tests.frameworks.vision")  # before timm, which imports torchvision
    import timm.data  # noqa: F401
    import torchvision.transforms.v2  # noqa: F401


class Pictures(Dataset):
    """Picture ``i`` is full of ``i``, with a gradient that a flip turns round."""

    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        picture = Image.new("RGB", (8, 8), (index, index, index))
        picture.putdata([(index, 10 * (k % 8), 128) for k in range(64)])
        return (picture if self.transform is None else self.transform(picture)), index


def labelled(batch: Any) -> Any:
    """Labels, and a number that any change of the pictures changes."""
    pictures, labels = batch
    weight = torch.arange(pictures[0].numel(), dtype=torch.float64).reshape(pictures[0].shape)
    return [labels.tolist(), [round(float((p.double() * weight).sum()), 3) for p in pictures]]


def mixed(batch: Any) -> Any:
    """Of a mixed batch the labels that are in it, and how much of each."""
    pictures, targets = batch
    assert targets.shape[1:] == (COUNT,)
    weights = targets.sum(0)
    found = weights.nonzero().flatten().tolist()
    return [found, [round(float(weights[i]), 4) for i in found] + [round(float(pictures.double().sum()), 2)]]


# ---- timm -----------------------------------------------------------------------------------------------


def _timm(cell: Cell, **how: Any) -> Made:
    import importlib

    import timm.data.loader

    # timm takes the class from torch when it is imported. Here it may have been replaced since.
    loader = importlib.reload(timm.data.loader)
    made = loader.create_loader(
        Pictures(),
        (3, 8, 8),
        BATCH,
        num_workers=cell.workers,
        distributed=cell.world > 1,
        device=torch.device("cpu"),
        **how,
    )
    inner = getattr(made, "loader", made)

    def set_epoch(epoch: int) -> None:  # as timm's train.py
        for sampler in (made.batch_sampler, made.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
                break

    return Made(made, labelled, set_epoch, state=inner, ahead=int(made is not inner))


def timm_train(cell: Cell) -> Made:
    """With the prefetcher, which reads a batch ahead."""
    return _timm(cell, is_training=True, re_prob=0.5)


def timm_no_prefetcher(cell: Cell) -> Made:
    """Without it."""
    return _timm(cell, is_training=True, use_prefetcher=False)


def timm_multi_epochs(cell: Cell) -> Made:
    """`MultiEpochsDataLoader`: one iterator for all epochs, so a state is in the middle of an endless sweep."""
    return _timm(cell, is_training=True, use_multi_epochs_loader=True)


def timm_repeated(cell: Cell) -> Made:
    """`RepeatAugSampler`, which timm has for several ranks."""
    return _timm(cell, is_training=True, use_prefetcher=False, num_aug_repeats=3 if cell.world > 1 else 0)


def timm_scheduled(cell: Cell) -> Made:
    """Sizes that a batch sampler chooses, with indices that are pairs."""
    return _timm(cell, is_training=True, input_size_choices=[8, 16], batch_size_choices=[4, 2])


def timm_eval(cell: Cell) -> Made:
    """`OrderedDistributedSampler`."""
    return _timm(cell, is_training=False)


# ---- the references of torchvision ----------------------------------------------------------------------


def _augmented() -> Any:
    from torchvision.transforms import v2

    return v2.Compose([v2.PILToTensor(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


def _sampler(cell: Cell, dataset: Any, train: bool = True) -> Any:
    if cell.world > 1:
        return DistributedSampler(dataset, shuffle=train)
    return RandomSampler(dataset) if train else SequentialSampler(dataset)


def _made(cell: Cell, loader: Any, told: Any, sampler: Any) -> Made:
    return Made(loader, told, lambda epoch: sampler.set_epoch(epoch) if hasattr(sampler, "set_epoch") else None)


def classification(cell: Cell) -> Made:
    """A sampler, pinned memory, and mixup or cutmix over the collated batch."""
    from torch.utils.data import default_collate
    from torchvision.transforms import v2

    either = v2.RandomChoice([v2.MixUp(num_classes=COUNT), v2.CutMix(num_classes=COUNT)])

    def collate_fn(batch: Any) -> Any:
        return either(*default_collate(batch))

    dataset = Pictures(_augmented())
    sampler = _sampler(cell, dataset)
    loader = cell.Loader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=cell.workers,
        pin_memory=True,
        collate_fn=collate_fn,
    )
    return _made(cell, loader, mixed, sampler)


class Repeated(Sampler):
    """Each item three times, one after the other over the ranks. A rank takes as many as a plain sampler would."""

    def __init__(self, dataset: Any, world: int, rank: int) -> None:
        self.dataset, self.world, self.rank, self.epoch = dataset, world, rank, 0
        self.taken = len(dataset) // world

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator).repeat_interleave(3)
        return iter(order[self.rank :: self.world].tolist()[: self.taken])

    def __len__(self) -> int:
        return self.taken

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def repeated(cell: Cell) -> Made:
    """The repeated augmentation of the classification script, with workers that stay."""
    dataset = Pictures(_augmented())
    sampler = Repeated(dataset, cell.world, cell.rank)
    loader = cell.Loader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=cell.workers,
        persistent_workers=cell.workers > 0,
    )
    return _made(cell, loader, labelled, sampler)


class ByGroup(BatchSampler):
    """Batches of one group each, in the order of a sampler. A partial batch is filled with earlier items."""

    def __init__(self, sampler: Any, groups: list[int], batch_size: int) -> None:
        super().__init__(sampler, batch_size, False)
        self.groups = groups

    def __iter__(self) -> Any:
        waiting: dict[int, list[int]] = {}
        seen: dict[int, list[int]] = {}
        left = len(self)
        for index in self.sampler:
            group = self.groups[index]
            for kept in (waiting, seen):
                kept.setdefault(group, []).append(index)
            if len(waiting[group]) == self.batch_size:
                yield waiting.pop(group)
                left -= 1
        for group in sorted(waiting)[:left]:
            batch = waiting[group]
            yield (batch + seen[group] * self.batch_size)[: self.batch_size]

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size


def detection(cell: Cell) -> Made:
    """A batch sampler that groups by aspect ratio, and batches that are tuples of unlike pictures."""
    dataset = Pictures(_augmented())
    sampler = _sampler(cell, dataset)
    loader = cell.Loader(
        dataset,
        batch_sampler=ByGroup(sampler, [i % 3 for i in range(COUNT)], 2),
        num_workers=cell.workers,
        collate_fn=lambda batch: tuple(zip(*batch, strict=True)),
    )

    def told(batch: Any) -> Any:
        pictures, labels = batch
        assert type(pictures) is type(labels) is tuple
        return labelled((torch.stack(pictures), torch.tensor(labels)))

    return _made(cell, loader, told, sampler)


def detection_in_batches(cell: Cell) -> Made:
    """The same script without groups: torch's BatchSampler, the last batch dropped."""
    dataset = Pictures(_augmented())
    sampler = _sampler(cell, dataset)
    batches = BatchSampler(sampler, BATCH, drop_last=True)
    return _made(cell, cell.Loader(dataset, batch_sampler=batches, num_workers=cell.workers), labelled, sampler)


def segmentation(cell: Cell) -> Made:
    """Crops drawn by Python's `random`, as old transforms do. The last batch is dropped."""
    dataset = Pictures(_cropped)
    sampler = _sampler(cell, dataset)
    loader = cell.Loader(dataset, batch_size=BATCH, sampler=sampler, num_workers=cell.workers, drop_last=True)
    return _made(cell, loader, labelled, sampler)


def _cropped(picture: Any) -> Any:
    from torchvision.transforms import functional

    return functional.pil_to_tensor(functional.crop(picture, random.randrange(4), random.randrange(4), 4, 4))


def evaluation(cell: Cell) -> Made:
    """The test loader of all of them: in order, on one rank each its share."""
    dataset = Pictures(_augmented())
    sampler = _sampler(cell, dataset, train=False)
    loader = cell.Loader(dataset, batch_size=BATCH, sampler=sampler, num_workers=cell.workers)
    return _made(cell, loader, labelled, sampler)


PROGRAMS = {
    "timm": [timm_train, timm_no_prefetcher, timm_multi_epochs, timm_repeated, timm_scheduled, timm_eval],
    "torchvision": [classification, repeated, detection, detection_in_batches, segmentation, evaluation],
}
