"""Which sweep comes next, and how much of the current one has been delivered.

A loader, its iterators and its samplers share one `Sweeps`, and know nothing else about each other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from feedline.concurrency.fork_local import PerProcess
from feedline.errors import StateError
from feedline.feed.loader.batches import Batches
from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.draws import ProgramGenerator, SamplerDraws, draw, seed_at
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import Planned
from feedline.feed.loader.sampling import BegunOrder, with_generator
from feedline.feed.loader.state import LIMIT, ResumePoint
from feedline.feed.partition import ranks


class SweepProgress:
    """The position of an iterator. It outlives the iterator.

    An iterator that has not been asked for a batch yet follows ``set_epoch``, because Lightning calls that only after
    ``iter``. One that continues a state moves only to later epochs, because the saved epoch is set on it, too.

    Args:
        place: where the iterator begins.
        resumed: whether a state names that place.

    Attributes:
        resumed: see above.
        asked: whether the iterator was asked for a batch.
        redirected: place at which it has to begin instead, after ``set_epoch``. None if it begins at ``place``.
        epoch: last epoch of the user's sampler that the iterator has followed, or None.
    """

    def __init__(self, place: ResumePoint, resumed: bool = False) -> None:
        self.place, self._sweep = place, place.sweep
        self.resumed = resumed
        self.asked = False
        self.redirected: ResumePoint | None = None
        self.epoch: int | None = None

    def redirect(self, sweep: int) -> None:
        """Begin with ``sweep``, if the iterator has not been asked for a batch yet."""
        if self.asked:
            return
        moves = sweep > self._sweep if self.resumed else sweep != self._sweep
        self.redirected = ResumePoint(sweep) if moves else None

    def begin_at(self, place: ResumePoint) -> None:
        """Begin at another place."""
        self.place, self._sweep, self.redirected = place, place.sweep, None

    @property
    def ended(self) -> bool:
        """Whether the sweep is over."""
        return self.place.sweep != self._sweep

    def after(self, planned: Planned) -> ResumePoint:
        """Return the position once ``planned`` has been delivered.

        After the last batch this is the end of the sweep. The next sweep begins only when the loop asks for another
        batch and gets none.
        """
        place = self.place
        if planned.start == place.start and not place.done:
            return ResumePoint(place.sweep, planned.stop, (), planned.memo)
        start = place.start
        done: list[tuple[int, int]] = []
        for a, b in sorted((*place.done, (planned.start, planned.stop))):
            if a <= start:
                start = max(start, b)
            elif done and a <= done[-1][1]:
                done[-1] = (done[-1][0], max(b, done[-1][1]))
            else:
                done.append((a, b))
        return ResumePoint(place.sweep, start, tuple(done), planned.memo)


class LoaderPosition(NamedTuple):
    """The position of a loader.

    Attributes:
        next_sweep: sweep of the next iterator.
        resume: place where it begins, if a state was loaded or an iterator could not be created.
        newest: progress of the newest iterator. None if there is none, or a state has been loaded since.
    """

    next_sweep: int = 0
    resume: ResumePoint | None = None
    newest: SweepProgress | None = None

    @property
    def upcoming(self) -> ResumePoint:
        """Where the next iterator begins."""
        return self.resume or ResumePoint(self.next_sweep)

    @property
    def place(self) -> ResumePoint:
        """The position after the last batch that the newest iterator delivered."""
        newest = self.newest
        if newest is None or (newest.ended and self.next_sweep != newest.place.sweep):
            return self.upcoming
        return newest.redirected or newest.place


class Sweeps:
    """The current `LoaderPosition`. It is replaced as a whole, so that an interrupt finds either the old or the new
    one.

    Attributes:
        now: position of the loader.
        batches: batches of the sweeps.
        agreed: whether all ranks have the same seed, from an argument, a state or rank 0.
        divided: options before and after the latest change of the share, which iterators in use follow. None if there
            was none.
        generator: generator of the loader's sampler, for the order of the next sweep. None: the global one.
        program: the global generator.
    """

    def __init__(self, now: LoaderPosition, batches: Batches) -> None:
        self.now, self.batches, self._named = now, batches, False
        self.agreed = batches.options.seed is not None
        self.divided: tuple[LoaderOptions, LoaderOptions] | None = None
        self.program = ProgramGenerator()
        self.follow_generator(batches.options.generator)
        self._lock: PerProcess[Any] = PerProcess(threading.RLock)

    def __getstate__(self) -> dict[str, Any]:
        batches, place = self.batches_and_place()
        now, lock = LoaderPosition(self.now.next_sweep, place), PerProcess(threading.RLock)
        return {**self.__dict__, "now": now, "batches": batches, "_lock": lock}

    @property
    def place(self) -> ResumePoint:
        """The place that a state names: `LoaderPosition.place`, adjusted if the program has set another epoch or
        generator on the sampler of an iterator."""
        newest = self.now.newest
        if newest is None or newest.asked:
            return self.now.place
        self.redirection(newest)
        return with_generator(self.batches.options.user_sampler, self.now.place)

    # ---- seeds -------------------------------------------------------------------------------------------

    @property
    def seed_is_final(self) -> bool:
        """Whether the seed holds for all later sweeps: it is an argument, all ranks have it, or the order goes on."""
        return self.batches.options.seed is not None or (self._has_one_seed and self.batches.seed is not None)

    def follow_generator(self, generator: Any) -> None:
        """Let the order follow from a generator. None: the global one."""
        self.generator, batches = generator, self.batches
        self._first_seed = self._seed_at(batches.shuffles) if batches.options.seed is None else batches.options.seed

    @property
    def has_named_sweeps(self) -> bool:
        """Whether the program numbers the sweeps, with ``set_epoch`` here or on its own sampler. Then all have one
        seed. So a framework that skips batches to resume, as Accelerate does, finds the same batches whatever else has
        been drawn."""
        return self._named or self.batches.epoch() is not None

    def name_sweeps(self) -> None:
        """Note that the program numbers the sweeps."""
        self._named = True

    @property
    def _has_one_seed(self) -> bool:
        """Whether one seed is drawn for all sweeps: ranks agree on it once, or the order goes on."""
        options = self.batches.options
        pipe_of_ranks = options.is_pipe and ranks()[1] > 1
        return options.partition is not None or self.batches.one_seed or pipe_of_ranks

    def begin_seed(
        self, place: ResumePoint, workers: bool = False, sampler: bool = False, keeps: bool = False
    ) -> SamplerDraws | None:
        """Take the seed of a sweep from the program's generators, and draw from them as torch does when a sweep begins.

        Args:
            place: where the sweep begins.
            workers: whether workers start, rather than continue from an earlier sweep.
            sampler: whether only the loader's sampler is iterated.
            keeps: whether the seed of the preceding sweep holds for this one, too.

        Returns:
            The later draws of the sweep, or None if there are none.
        """
        batches, options = self.batches, self.batches.options
        batches.program = self.program
        generator, resumes = options.generator, self.now.resume is not None and batches.seed is not None
        shuffles = batches.shuffles and options.partition is None and not batches.one_seed
        if options.seed is not None:
            return None
        if resumes and batches.seed_sweep is None:
            self._first_seed = batches.sure_seed
            return None
        if resumes:
            self.program.current_twin()  # follow the program if it has set its generator since the state was loaded
            return self._sampler_draws(sampler, place, resumes=True) if shuffles else None
        fresh = not sampler and (workers or not options.persistent_workers)
        if not self.seed_is_final and not keeps and (shuffles or fresh or batches.seed is None):
            self.batches = self._with_new_seed(batches, place.sweep)
        seeds_pipes = 0 if sampler or not options.is_pipe else 2 if fresh and options.num_workers else 1
        for _ in range(fresh + seeds_pipes):
            if generator is None:
                self.program.draw()
            else:
                draw(generator)
        return self._sampler_draws(sampler, place) if shuffles else None

    def _sampler_draws(self, sampler: bool, place: ResumePoint, resumes: bool = False) -> SamplerDraws:
        options, items = self.batches.options, self.batches.places_in(place.sweep)
        assert items is not None, "an order without end has one seed"
        size, ahead = (1, 0) if sampler else (options.indices or 1, options.depth)
        done = -(-place.start // size) if resumes else None
        return SamplerDraws(self.generator, self.program, items=items, size=size, ahead=ahead, done=done)

    def _with_new_seed(self, batches: Batches, sweep: int) -> Batches:
        """Return the batches under the seed of a sweep that begins now."""
        if self._has_one_seed:
            return batches.with_seed(self._seed_at(batches.shuffles))
        if not self.has_named_sweeps:
            return batches.with_seed(self._seed_at(batches.shuffles), sweep)
        return batches.with_seed(self._first_seed)

    def _seed_at(self, shuffles: bool) -> int:
        generator = self.generator if shuffles else self.batches.options.generator
        return seed_at(self.program.current_twin() if generator is None else generator)

    def generators(self) -> dict[str, str]:
        """Return the states of the generators that the seeds of later sweeps follow from, for a state of the loader."""
        if self.seed_is_final or self.has_named_sweeps:
            return {}
        if self.generator is not None:
            return {"generator": torch_side().generator_state(self.generator)}
        text = self.program.state()
        return {} if text is None else {"global": text}

    def set_generators(self, saved: Mapping[str, str]) -> None:
        """Let later sweeps follow from states that `generators` has returned."""
        if self.batches.options.seed is not None:
            return
        if self.generator is not None and "generator" in saved:
            torch_side().set_generator_state(self.generator, saved["generator"])
        elif self.generator is None and "global" in saved:
            self.program.follow(saved["global"])

    def upcoming(self) -> Batches:
        """Return the batches of the next sweep if it began now."""
        batches = self.current()
        keeps = batches.options.persistent_workers and not batches.shuffles
        if self.seed_is_final or ((keeps or self.now.resume is not None) and batches.seed is not None):
            return batches
        return self._with_new_seed(batches, self.now.upcoming.sweep)

    def batches_and_place(self) -> tuple[Batches, ResumePoint]:
        """Return the batches and the place of a state. Their seed is None if it has yet to be drawn."""
        place, batches, newest = self.place, self.batches, self.now.newest
        if newest is not None and newest.redirected is not None and batches.seed_sweep is not None:
            batches = batches.with_seed(batches.seed, place.sweep)
        between_sweeps = self.now.resume is None and (newest is None or newest.ended)
        keeps = batches.options.persistent_workers and not batches.shuffles and batches.seed_sweep is not None
        if between_sweeps and not (self.seed_is_final or keeps):
            batches = self._with_new_seed(batches, place.sweep) if self.has_named_sweeps else batches.with_seed(None)
        return batches, place

    def resolve_partition(self) -> tuple[int, int]:
        """Return the partition. The first time, ranks that have drawn the seed of a random order take the seed of
        rank 0."""
        options = self.batches.options
        partition = options.own_partition.resolve()
        if self.agreed:
            return partition
        if options.is_pipe:  # a pipe divides itself among ranks, in one order for all
            if ranks()[1] > 1:
                self._agree()
        elif partition[1] > 1:
            if options.shuffle or options.weighted is not None:
                self._agree()
            self.agreed = True
        return partition

    def _agree(self) -> None:
        """Take the seed of rank 0."""
        torch = torch_side()
        if torch is None or not torch.in_group():
            raise ValueError(
                "expected a seed, as the ranks that mpiexec, srun or Ray has started draw separate ones and follow "
                "different orders, got none. Pass seed=, or call torch.distributed.init_process_group first"
            )
        self.batches, self.agreed = self.batches.with_seed(torch.seed_of_rank_0(self.batches.sure_seed)), True

    def lock(self) -> Any:
        """Return a lock of this process."""
        return self._lock.get()

    def current(self) -> Batches:
        """Return the batches of the dataset at its present length."""
        return self.batches.current(self.now.resume is not None)

    def warn_of_skipped(self) -> None:
        """Warn if the iterator of a loaded state was never asked for a batch and the next iterator skips a sweep.

        Lightning does that, and a loader cannot correct it: Lightning counts an epoch that it has not trained, and
        keeps counting from there.
        """
        now, epoch = self.now, self.batches.epoch()
        newest = now.newest
        if newest is None or newest.asked or not newest.resumed:
            return
        place, sweep = newest.place, now.upcoming.sweep
        if epoch is not None:
            saved = (place.memo or {}).get("epoch")
            sweep = place.sweep + (0 if saved is None else epoch - saved)
        left_out = sweep - place.sweep - 1
        if left_out > 0:
            what = f"sweep {sweep - 1} is" if left_out == 1 else f"sweeps {place.sweep + 1} to {sweep - 1} are"
            warnings.warn(
                f"{what} skipped: this loader has delivered nothing since its "
                f"state, of sweep {place.sweep}, was loaded, and was then told to begin sweep {sweep}. Lightning does "
                "that with `max_steps` and checkpoints of `on_train_epoch_end`: it counts an epoch that it does not "
                "train; resume from a checkpoint taken in the middle of an epoch, or after validation",
                stacklevel=4,
            )

    def begin(self) -> SweepProgress:
        """Claim the next sweep, or the rest of one that a state names. The lock is held."""
        place = self.now.upcoming
        progress = SweepProgress(place)
        progress.asked = True  # iterating a sampler requests an item at once
        self.now = LoaderPosition(place.sweep + 1, None, progress)
        return progress

    def go_to(self, sweep: int) -> None:
        """Make this the next sweep, unless a state names one. An iterator that has not been asked for a batch yet
        begins with it, too. A sweep in progress continues.

        Raises:
            ValueError: there is no such sweep.
        """
        if not 0 <= sweep < LIMIT:
            raise ValueError(f"expected an epoch of at least 0 and below 2**63, got {sweep}")
        with self.lock():
            if self.now.resume is None:
                if self.now.newest is not None:
                    self.now.newest.redirect(sweep)
                self.now = self.now._replace(next_sweep=sweep)
            self.name_sweeps()

    def redirection(self, progress: SweepProgress) -> ResumePoint | None:
        """Return the place where an iterator has to begin instead, because the epoch has changed since it was created,
        or None.

        The program sets the epoch of its sampler without telling us, so it is compared with the last known one.
        """
        epoch, place = self.batches.epoch(), progress.place
        # If there is a newer iterator, the epoch is meant for it.
        if epoch is not None and progress.epoch not in (None, epoch) and self.now.newest is progress:
            if place.start == 0:
                progress.redirect(epoch)
            elif (saved := (place.memo or {}).get("epoch")) is not None:
                progress.redirect(place.sweep + epoch - saved)
            progress.epoch = epoch
        return progress.redirected

    def note_move(self, progress: SweepProgress, place: ResumePoint) -> None:
        """Note that an iterator begins at the place of `redirection`, so that the next iterator does not get that
        sweep. The lock is held."""
        now = self.now
        if now.newest is progress and now.resume is None:
            self.now = now._replace(next_sweep=place.sweep)
            if self.batches.seed_sweep is not None:  # the seed goes with the sweep under its new number
                self.batches = self.batches.with_seed(self.batches.seed, place.sweep)
        progress.begin_at(place)

    def note_first_request(self, progress: SweepProgress) -> None:
        """Note that an iterator is asked for its first batch. The next iterator gets another sweep, even if `set_epoch`
        has chosen this one. The lock is held."""
        now = self.now
        if now.newest is progress and now.resume is None and now.next_sweep == progress.place.sweep:
            self.now = now._replace(next_sweep=progress.place.sweep + 1)

    def follow(self, order: BegunOrder) -> None:
        """Make a sweep of this order the next one, because a loader that reads our sampler continues from its state.
        The lock is held.

        Raises:
            StateError: the loader has another seed.
        """
        seed = self.batches.options.seed
        if seed is not None and order.seed != seed:
            raise StateError(
                "this state was taken over the sampler of a loader with another seed",
                saved={"seed": f"{order.seed:016x}"},
                current={"seed": f"{seed:016x}"},
                hint=f"pass seed={order.seed} to that loader",
            )
        sweep = max(self.now.upcoming.sweep, order.sweep) if order.per_sweep else order.sweep
        self.batches = self.batches.with_seed(order.seed, sweep - order.sweep if order.per_sweep else None)
        if not order.per_sweep:
            self._first_seed = order.seed
        self.now = LoaderPosition(sweep, ResumePoint(sweep))
