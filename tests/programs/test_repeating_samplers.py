"""Samplers that repeat, skip and continue: each `iter` of theirs depends on what was drawn before."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import BatchSampler, Dataset, RandomSampler, Sampler

from tests.programs.comparing import as_torch, torch, workers


class Prompts(Dataset):
    """Dictionaries of a text and its number, as a table of texts has them."""

    def __init__(self, count: int = 13) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return {"prompt": f"prompt {index % 7}", "number": index}


def as_list(items):
    return items


class Groups(Sampler):
    """Groups of prompts in random order, each prompt for several answers, each group for several updates. The generator
    goes on from epoch to epoch. A last group that is not full is left out."""

    def __init__(self, count: int, answers: int, prompts: int, updates: int) -> None:
        self.count, self.answers, self.prompts, self.updates = count, answers, prompts, updates
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return self.count // self.prompts * self.prompts * self.answers * self.updates

    def __iter__(self):
        order = torch.randperm(self.count, generator=self.generator).tolist()
        for start in range(0, self.count - self.prompts + 1, self.prompts):
            group = [index for index in order[start : start + self.prompts] for _ in range(self.answers)]
            yield from group * self.updates


class Share(Sampler):
    """Every second index without end, from a place on. It counts its rounds for itself, over all its iterators."""

    def __init__(self, count: int, advance: int) -> None:
        self.count, self.advance, self.rounds = count, advance, 0

    def __iter__(self):
        return itertools.islice(self.endless(), self.advance, None)

    def endless(self):
        while True:
            generator = torch.Generator().manual_seed(self.rounds)
            yield from torch.randperm(self.count, generator=generator)[::2].tolist()
            self.rounds += 1


class Shapes(BatchSampler):
    """Batches of one shape each. A batch waits until it is full, and the last ones repeat the first of their shape."""

    def __init__(self, sampler: Sampler, shapes: list[int], batch_size: int) -> None:
        super().__init__(sampler, batch_size, False)
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size

    def __iter__(self):
        waiting: dict[int, list[int]] = {}
        seen: dict[int, list[int]] = {}
        left = len(self)
        for index in self.sampler:
            shape = self.shapes[index]
            seen.setdefault(shape, []).append(index)
            waiting.setdefault(shape, []).append(index)
            if len(waiting[shape]) == self.batch_size:
                left -= 1
                yield waiting.pop(shape)
        fullest = sorted(waiting, key=lambda shape: len(waiting[shape]), reverse=True)
        for shape in fullest[:left]:
            yield list(itertools.islice(itertools.chain(waiting[shape], itertools.cycle(seen[shape])), self.batch_size))


class Crops(Dataset):
    """Pictures of two shapes, cut at a random place. The place follows from the index alone."""

    def __init__(self, count: int) -> None:
        self.shapes = [index % 2 for index in range(count)]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            place = torch.randint(20, (2,))
        return {"number": index, "place": place, "picture": torch.full((2 + self.shapes[index], 3), float(index))}


class Apart(BatchSampler):
    """Batches without equal texts. It reads the dataset to form them, and is reseeded by the number of the epoch."""

    def __init__(self, dataset: Dataset, batch_size: int, generator: torch.Generator) -> None:
        super().__init__(range(len(dataset)), batch_size, False)
        self.dataset, self.generator, self.epoch = dataset, generator, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        self.generator.manual_seed(self.epoch)
        left = torch.randperm(len(self.dataset), generator=self.generator).tolist()
        while left:
            batch: dict[str, int] = {}
            for index in left:
                if len(batch) < self.batch_size:
                    batch.setdefault(self.dataset[index]["prompt"], index)
            left = [index for index in left if index not in batch.values()]
            yield list(batch.values())


class InTurn(BatchSampler):
    """A batch of each of several samplers in turn, until one of them ends. They share one generator."""

    def __init__(self, parts: list[Apart], generator: torch.Generator) -> None:
        super().__init__(range(sum(len(part.dataset) for part in parts)), 1, False)
        self.parts, self.generator = parts, generator

    def set_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.set_epoch(epoch)

    def __len__(self) -> int:
        return min(len(part) for part in self.parts) * len(self.parts)

    def __iter__(self):
        offsets = itertools.accumulate((len(part.dataset) for part in self.parts), initial=0)
        running = [(offset, iter(part)) for offset, part in zip(offsets, self.parts, strict=False)]
        for offset, batches in itertools.cycle(running):
            batch = next(batches, None)
            if batch is None:
                return
            yield [offset + index for index in batch]


@workers
def test_each_prompt_is_repeated_for_its_answers_and_updates(workers):
    def program(loader_class):
        sampler = Groups(13, answers=4, prompts=3, updates=2)
        loader = loader_class(Prompts(), 6, sampler=sampler, collate_fn=as_list, drop_last=True, num_workers=workers)
        return [list(loader) for _ in range(3)]

    epochs = as_torch(program)
    assert [len(epoch) for epoch in epochs] == [16, 16, 16]
    first = [item["number"] for batch in epochs[0][:2] for item in batch]
    again = [item["number"] for batch in epochs[0][2:4] for item in batch]
    assert first == again


@workers
def test_a_resumed_program_passes_over_what_it_has_had(workers):
    """As frameworks resume: a new loader, whose batches of finished epochs and of the begun one are dropped."""

    def program(loader_class, done: int = 0):
        sampler = Groups(13, answers=2, prompts=3, updates=1)
        loader = loader_class(Prompts(), 6, sampler=sampler, collate_fn=as_list, num_workers=workers)
        fed = []
        for _ in range(3):
            epoch = list(itertools.islice(loader, done, None))
            done = max(0, done - len(loader))
            fed += epoch
        return fed

    assert as_torch(program, done=6) == as_torch(program)[6:]


@pytest.mark.parametrize("persistent", [False, True])
@workers
def test_a_sampler_without_end_continues_where_it_was_advanced_to(workers, persistent):
    def program(loader_class):
        loader = loader_class(
            Prompts(21), 4, sampler=Share(21, 9), num_workers=workers, persistent_workers=persistent and workers > 0
        )
        return [list(itertools.islice(loader, 7)) for _ in range(3)]

    as_torch(program)


@workers
def test_batches_of_one_shape_wait_until_they_are_full(workers):
    """The sampler has no generator: each epoch draws its seed from torch's global one."""

    def program(loader_class):
        pictures = Crops(9)
        batches = Shapes(RandomSampler(pictures), pictures.shapes, 2)
        loader = loader_class(pictures, batch_sampler=batches, num_workers=workers)
        return [[*loader, torch.rand(2)] for _ in range(3)]

    epochs = as_torch(program)
    numbers = [[batch["number"].tolist() for batch in epoch[:-1]] for epoch in epochs]
    assert [len(epoch) for epoch in numbers] == [4, 4, 4]
    assert numbers[0] != numbers[1]
    assert all(len({number % 2 for number in batch}) == 1 for epoch in numbers for batch in epoch)


@pytest.mark.parametrize("told", [False, True])
@workers
def test_batches_without_duplicates_follow_the_number_of_the_epoch(workers, told):
    def program(loader_class):
        generator = torch.Generator()
        sampler = Apart(Prompts(30), 4, generator)
        loader = loader_class(sampler.dataset, batch_sampler=sampler, generator=generator, num_workers=workers)
        fed = []
        for epoch in range(3):
            if told:
                loader.batch_sampler.set_epoch(epoch)
            fed.append(list(loader))
        return fed

    first, second, _ = ([batch["prompt"] for batch in epoch] for epoch in as_torch(program))
    assert (first != second) == told


@workers
def test_several_datasets_give_batches_in_turn(workers):
    def program(loader_class):
        generator = torch.Generator()
        data = [Prompts(30), Prompts(17)]
        sampler = InTurn([Apart(part, 4, generator) for part in data], generator)
        joined = torch.utils.data.ConcatDataset(data)
        loader = loader_class(joined, batch_sampler=sampler, num_workers=workers, generator=generator)
        fed = []
        for epoch in range(3):
            loader.batch_sampler.set_epoch(epoch)
            fed.append(list(loader))
        return fed

    as_torch(program)
