"""JSON texts of MXNet's symbols with any place changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.torture import hostile
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile


class HostileSymbols(Hostile):
    """A symbol that works, or an `MXNetError`."""

    name = "hostile-symbols"
    asks = "is every failure of an MXNet symbol's JSON an MXNetError?"
    batch = 40
    # Shapes come from torch's meta kernels, some of which import its compiler, which makes the folder of its cache.
    leaves = ("torchinductor_*",)

    def allowed(self) -> tuple[type[BaseException], ...]:
        from feedline.mxnet.base import MXNetError

        return (MXNetError,)

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: _asked(_network().tojson())

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        text = _network().tojson()
        if case.rng.random() < 0.7:
            changed, how = hostile.tree(case.rng, json.loads(text))
            text = json.dumps(changed)
        else:
            raw, how = mutated(case.rng, text.encode())
            text = raw.decode("utf-8", "replace")

        return how, lambda: _asked(text)


def _asked(text: str) -> None:
    import feedline.mxnet as mx

    symbol = mx.symbol.load_json(text)
    symbol.tojson(), symbol.list_arguments(), symbol.list_outputs(), symbol.attr_dict()
    symbol.infer_shape_partial(data=(4, 3, 12, 12))


def _network() -> Any:
    import feedline.mxnet as mx

    sym = mx.symbol
    data = sym.Variable("data")
    one = sym.Convolution(data, kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    one = sym.BatchNorm(one, name="norm")
    one = sym.Activation(one, act_type="relu", name="act")
    one = sym.Pooling(one, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    one = sym.FullyConnected(sym.Flatten(one), num_hidden=7, name="fc")
    one = sym.Concat(one, sym.Dropout(one, p=0.5), dim=1)
    return sym.SoftmaxOutput(one, name="softmax")
