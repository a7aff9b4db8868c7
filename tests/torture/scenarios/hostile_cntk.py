"""Configurations and checkpoints under CNTK's names with any place changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from feedline.errors import FeedlineError
from tests.torture import hostile
from tests.torture.case import Case
from tests.torture.hostile import Hostile


class HostileCNTK(Hostile):
    """Errors that CNTK's scripts know: of feedline, or ValueError, TypeError and RuntimeError for arguments."""

    name = "hostile-cntk"
    asks = "are wrong configurations and checkpoints of CNTK's readers refused in words?"

    def allowed(self) -> tuple[type[BaseException], ...]:
        return (FeedlineError, ValueError, TypeError, RuntimeError)

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: _use(_source(_config(case)))

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        if case.rng.random() < 0.5:
            config, how = hostile.tree(case.rng, _config(case))
            return f"a configuration: {how}", lambda: _use(_source(config))
        state, how = hostile.tree(case.rng, _walked(case))

        def restore() -> None:
            source = _source(_config(case))
            source.restore_from_checkpoint(state)
            _use(source)

        return f"a checkpoint: {how}", restore


def _config(case: Case) -> Any:
    import feedline.cntk as C

    streams = C.io.StreamDefs(
        word=C.io.StreamDef("word", 50, is_sparse=True),
        x=C.io.StreamDef("x", 3),
        y=C.io.StreamDef("y", 5, is_sparse=True),
    )
    return json.loads(json.dumps(C.io.CTFDeserializer(str(case.data / "few" / "data.ctf"), streams)))


def _source(config: Any) -> Any:
    import feedline.cntk as C

    return C.io.MinibatchSource(config, max_sweeps=2)


def _use(source: Any) -> None:
    for _ in range(3):
        source.next_minibatch(30)
    json.dumps(source.get_checkpoint_state())


def _walked(case: Case) -> Any:
    source = _source(_config(case))
    source.next_minibatch(30)
    return json.loads(json.dumps(source.get_checkpoint_state()))
