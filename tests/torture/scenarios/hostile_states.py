"""States of sources, loaders, sessions and optimizers with any field replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import torch

import feedline as fl
from feedline.errors import StateError
from tests.torture import data, hostile, training
from tests.torture.case import Case, WrongError
from tests.torture.hostile import Hostile

KINDS = (*data.FORMATS, "source", "lanes", "loader", "session", "optimizer")


class HostileStates(Hostile):
    """Refused with a `StateError` and without side effects, or usable to continue."""

    name = "hostile-states"
    asks = "does a state with a wrong field fail when it is loaded, and only then?"
    memory = 2 << 30

    def allowed(self) -> tuple[type[BaseException], ...]:
        return (StateError,)

    def original(self, case: Case) -> Callable[[], Any]:
        def load() -> None:
            for kind in KINDS[:-2]:
                feed, step, rest = _feed(kind, case)
                step(feed)
                fresh, _, _ = _feed(kind, case)
                fresh.load_state_dict(feed.state_dict())
                rest(fresh)

        return load

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        kind = case.rng.choice(KINDS)
        if kind == "session":
            return self._session(case, k)
        if kind == "optimizer":
            return self._optimizer(case, k)
        feed, step, rest = _feed(kind, case)
        step(feed)
        state, how = hostile.tree(case.rng, json.loads(json.dumps(feed.state_dict())))

        def load() -> None:
            fresh, _, _ = _feed(kind, case)
            before = json.dumps(fresh.state_dict(), sort_keys=True)
            try:
                fresh.load_state_dict(state)
            except StateError:
                if json.dumps(fresh.state_dict(), sort_keys=True) != before:
                    raise WrongError("refused, and the feed stands elsewhere than before") from None
                raise
            accepted = f"accepted as {json.dumps(fresh.state_dict())!r:.300}"
            try:
                rest(fresh)
                json.dumps(fresh.state_dict())
            except StateError as error:
                # What a window holds is known when it has been read, so a place in one may turn out to be none.
                if kind != "unsized":
                    raise WrongError(f"{accepted}, then {error!r:.200}") from error

        return f"{kind}: {how}", load

    def _session(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        """A sealed checkpoint with wrong content."""
        from feedline.train.checkpoint import Checkpoints

        folder = case.folder / str(k)
        shutil.copytree(case.data / "run", folder)
        kept = Checkpoints(folder / "checkpoints")
        found = kept.latest()
        assert found is not None
        state, how = hostile.tree(case.rng, {key: v for key, v in found.state.items() if key != "feedline"})
        for path in kept.paths():
            shutil.rmtree(path)
        if not isinstance(state, dict):
            state = {}
        kept.save(99, found.tensors, state)

        def load() -> None:
            run, _ = training.session(folder, case.data / "few", stop=4)
            try:
                run.run()
            except training.StoppedError:
                pass

        return f"session: {how}", load

    def _optimizer(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        from feedline.interop.tensor_file import load_tensors, save_tensors

        path = case.folder / f"{k}.states"
        store = _store(case)
        store.save_optimizer_states(path, dump_optimizer=case.rng.random() < 0.5)
        tensors, about = load_tensors(path)
        about, how = hostile.tree(case.rng, about)
        path.unlink()
        save_tensors(path, tensors, about if isinstance(about, dict) else {})

        def load() -> None:
            fresh = _store(case)
            fresh.load_optimizer_states(path)
            fresh.push("w", torch.ones(5))

        return f"optimizer: {how}", load


def _store(case: Case) -> Any:
    store = fl.kvstore.create("local")
    store.init("w", torch.zeros(5))
    store.set_optimizer("adam", learning_rate=0.1)
    store.push("w", torch.ones(5))
    return store


def _feed(kind: str, case: Case) -> tuple[Any, Callable[[Any], None], Callable[[Any], None]]:
    """A fresh feed, how it goes to the place of the state, and how it is used from there."""
    corpus = case.data / "few"
    if kind == "loader":

        def step(loader: Any) -> None:
            batches = iter(loader)
            next(batches), next(batches)

        loader = fl.DataLoader(list(range(50)), batch_size=7, shuffle=True, seed=5)
        return loader, step, lambda loader: next(iter(loader), None)  # it may be at the end of a sweep
    if kind == "source":
        feed: Any = data.Walk(data.FEW, 2)
    elif kind == "lanes":
        corpus_ = fl.StoreDeserializer(corpus / "data.store", ["word"])
        feed = fl.MinibatchSource(corpus_, seed=2, max_sweeps=3, truncation_length=2)
    else:
        feed = fl.MinibatchSource(data.FORMATS[kind](corpus), seed=2, max_sweeps=3)

    def use(feed: Any) -> None:
        feed.next_minibatch(9)
        feed.next_minibatch(50)

    return feed, use, use
