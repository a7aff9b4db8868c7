"""The KVStore of MXNet 1.9.1: scripts of operations give the recorded results, except for its defects.

Where MXNet was wrong (`mxnet_defect`) the sane values are expected. The few cases below differ on purpose.
"""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest

import feedline.mxnet as mx
from tests.cli.shell import feedline
from tests.compat.golden import cases

#: Deliberate differences from MXNet. docs/compat/mxnet.md gives the reasons.
RAISES_HERE = {"updater raising an exception"}


def array(described):
    context = mx.cpu(described.get("device", 0))
    dtype = described.get("dtype", "float32")
    if described.get("stype") == "row_sparse":
        parts = (np.array(described["data"], dtype), np.array(described["indices"], "int64"))
        return mx.nd.sparse.row_sparse_array(parts, described["shape"], context, dtype)
    return mx.nd.array(np.array(described["data"]), context, dtype)


def fresh(described):
    context, dtype = mx.cpu(described.get("device", 0)), described.get("dtype", "float32")
    if described.get("stype") == "row_sparse":
        return mx.nd.sparse.zeros("row_sparse", described["shape"], context, dtype)
    return mx.nd.full(described["shape"], -7, context, dtype)


def nested(make, described):
    return [nested(make, one) for one in described] if isinstance(described, list) else make(described)


def flat(arrays):
    return [leaf for one in arrays for leaf in flat(one)] if isinstance(arrays, list) else [arrays]


def updater_of(settings, calls):
    scale = settings.get("scale", 1)

    def update(key, received, stored):
        calls.append(key)
        kind = settings["kind"]
        if kind in ("add", "print"):
            if kind == "print":
                print(f"update on key: {key}")
            stored += received * scale
        elif kind == "sub":
            stored -= received * scale
        elif kind == "assign_mean":
            stored[:] = (received + stored) / 2
        elif kind == "key_times":
            stored += received * (key if isinstance(key, int) else len(key))
        elif kind == "rebind":
            stored = stored + received
        else:
            raise ValueError("from the updater")

    return update


def perform(store, op, calls, folder):
    """Perform one operation. Return the arrays that it filled, or None."""
    kind, key = op["op"], op.get("key")
    options = {"priority": op["priority"]} if "priority" in op else {}
    if kind in ("init", "push"):
        getattr(store, kind)(key, nested(array, op["value"]), **options)
    elif kind in ("pull", "row_sparse_pull"):
        out = nested(fresh, op["out"])
        if "ignore_sparse" in op:
            options["ignore_sparse"] = op["ignore_sparse"]
        if "row_ids" in op:
            ids, dtype = op["row_ids"], op.get("ids_dtype", "int64")
            several = ids and isinstance(ids[0], list)
            options["row_ids"] = (
                [mx.nd.array(i, dtype=dtype) for i in ids] if several else mx.nd.array(ids, dtype=dtype)
            )
        getattr(store, kind)(key, out, **options)
        return out
    elif kind in ("pushpull", "broadcast"):
        value = nested(array, op["value"])
        out = nested(fresh, op["out"]) if "out" in op else None
        getattr(store, kind)(key, value, out, **options)
        return value if out is None else out
    elif kind == "set_updater":
        store._set_updater(updater_of(op["updater"], calls))
    elif kind == "set_optimizer":
        store.set_optimizer(mx.optimizer.create(op["optimizer"], **op["args"]))
    elif kind == "set_gradient_compression":
        store.set_gradient_compression(op["params"])
    elif kind in ("save_optimizer_states", "load_optimizer_states"):
        getattr(store, kind)(str(folder / op["file"]))
    elif kind == "is_capable":
        return store.is_capable(op["capability"])
    else:
        assert kind == "barrier"
        store._barrier()
    return None


def check_array(found, expected):
    assert found.shape == tuple(expected["shape"])
    assert np.dtype(found.dtype).name == expected["dtype"]
    assert found.context == mx.cpu(expected["device"])
    assert found.stype == expected.get("stype", "default")
    if found.stype == "row_sparse":
        assert found.indices.asnumpy().tolist() == expected["indices"]
        found = found.data
    np.testing.assert_allclose(
        found.asnumpy().ravel().astype("float64"), np.ravel(expected["data"]).astype("float64"), rtol=1e-5, atol=1e-7
    )


def error_of(expected):
    name = expected["type"]
    return mx.MXNetError if name == "MXNetError" else getattr(builtins, name)


@pytest.mark.parametrize("case", cases("kvstore.json"))
def test_gives_what_mxnet_gave(case, tmp_path, capsys):
    store, calls = None, []
    for op, expected in zip(case["ops"], case["expect"], strict=True):
        del calls[:]
        if op["op"] == "create":
            store = mx.kv.create(op["name"]) if "name" in op else mx.kv.create()
            assert {name: getattr(store, name) for name in expected} == expected
            continue
        if "error" in expected:
            with pytest.raises(error_of(expected["error"])):
                perform(store, op, calls, tmp_path)
            continue
        if case["label"] in RAISES_HERE and op["op"] == "push":
            with pytest.raises(ValueError, match="from the updater"):
                perform(store, op, calls, tmp_path)
            continue
        capsys.readouterr()
        found = perform(store, op, calls, tmp_path)
        if "crash" in expected:
            continue
        assert calls == expected.get("updater_calls", [])
        assert capsys.readouterr().out.splitlines() == expected.get("printed", [])
        if "sane_out" in expected:
            values = [np.asarray(one) for per_key in expected["sane_out"] for one in per_key]
            assert [a.asnumpy().tolist() for a in flat(found)] == [v.tolist() for v in values]
        elif "out" in expected or "value_after" in expected:
            wanted = flat(expected.get("out", expected.get("value_after")))
            for one, described in zip(flat(found), wanted, strict=True):
                check_array(one, described)
        elif "result" in expected:
            assert found == expected["result"]
        else:
            assert set(expected) <= {"updater_calls", "printed"}, expected


def test_the_expected_outputs_of_the_tutorial():
    """The example of MXNet's tutorial, as its page shows it."""
    script = next((p for base in (3, 2) if (p := seeds(base) / "seed_002_kvstore.py").exists()), None)
    if script is None:
        pytest.skip(f"{seeds(2)} is not there")
    expected = script.with_name("seed_002_kvstore.expected.txt").read_text()
    assert feedline("run", "--as", "mxnet", script).stdout == expected


def seeds(up):
    return Path(__file__).resolve().parents[up].parent / "shared" / "seeds"
