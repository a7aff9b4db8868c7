"""Files of tensors with any byte changed: optimizer states, checkpoints and functions under CNTK's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.interop.tensor_file import load_tensors, save_tensors
from tests.torture import hostile
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile


class HostileTensors(Hostile):
    """The written data, or a `FeedlineError`."""

    name = "hostile-tensors"
    asks = "is a changed file of tensors refused, header and all?"
    batch = 40

    def prepare(self, case: Case) -> None:
        import feedline.cntk as C

        shared = torch.arange(12.0)
        for name, offset in (("a", 0), ("b", 1)):
            tensors = {"w": shared + offset, "tied": shared + offset, "n": torch.ones(3, 2, dtype=torch.int64) * offset}
            tensors["tied"] = tensors["w"]
            path = case.folder / f"{name}.plain"
            save_tensors(path, tensors, {"rate": 0.5 + offset, "names": ["w", "n"], "deep": {"k": [1, 2, offset]}})
            torch.manual_seed(offset)
            x = C.input_variable(3)
            C.combine(C.layers.Dense(2)(C.layers.Dense(4, activation=C.relu)(x))).save(str(case.folder / f"{name}.net"))

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: (_plain(case.folder / "a.plain"), _loaded(case.folder / "a.net"))

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        kind = rng.choice(["plain", "net"])
        original, other = (case.folder / f"{name}.{kind}" for name in "ab")
        path = case.folder / f"{k}.changed"
        if kind == "net" and rng.random() < 0.5:
            tensors, state = load_tensors(original)
            state, how = hostile.tree(rng, state)
            save_tensors(path, tensors, state if isinstance(state, dict) else {})
            return f"a function whose graph says: {how}", lambda: _loaded(path)
        text, how = mutated(rng, original.read_bytes(), other.read_bytes())
        if text in (original.read_bytes(), other.read_bytes()):  # swapped bytes may make the whole other file
            return "nothing", lambda: None
        path.write_bytes(text)

        def load() -> None:
            if kind == "net":
                found, expected = _loaded(path), _loaded(original)
            else:
                found, expected = _plain(path), _plain(original)
            if found != expected:
                raise WrongError(f"read as {found!r:.300}")

        return f"{kind}: {how}", load


def _plain(path: Any) -> Any:
    tensors, state = load_tensors(path)
    told = {name: (str(t.dtype), tuple(t.shape), t.tolist()) for name, t in sorted(tensors.items())}
    return told, state


def _loaded(path: Any) -> Any:
    import feedline.cntk as C

    function = C.Function.load(str(path))
    return [(p.name, p.shape, p.asarray().tolist()) for p in function.parameters], str(function)
