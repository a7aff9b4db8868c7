"""`import mxnet` imports the façade if it is installed, and the table of names matches its modules."""

from __future__ import annotations

import importlib
import sys

import pytest

import feedline as fl
import feedline.mxnet as mx
from tests.cli.shell import feedline
from tests.compat import tables
from tests.docs import mxnet_table
from tests.docs.mxnet_table import NAMES

MODULES = list(NAMES)


@pytest.mark.parametrize("name", MODULES)
def test_each_name_is_in_the_table_once(name):
    tables.check_listed_once(NAMES[name])


@pytest.mark.parametrize("name", MODULES)
def test_what_the_table_calls_there_is_there(name):
    tables.check_there(name, NAMES[name])


@pytest.mark.parametrize("name", MODULES)
def test_absent_names_of_the_table_raise(name):
    tables.check_absent(name, NAMES[name])


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_in_the_table(name):
    tables.check_complete(name, NAMES[name])


@pytest.mark.parametrize("name", MODULES)
def test_an_unknown_name_is_no_attribute(name):
    assert not hasattr(tables.module_of(name), "no_such_name")


@pytest.mark.parametrize("name", MODULES)
def test_names_of_the_original_are_there_or_in_the_table(name):
    tables.check_original(name, NAMES[name])


@pytest.mark.parametrize("name", MODULES)
def test_what_is_absent_is_no_attribute(name):
    tables.check_no_attribute(name, NAMES[name])


def test_page_is_made_from_the_table():
    assert mxnet_table.PAGE.read_text("utf-8") == mxnet_table.page(), "run: python -m tests.docs.mxnet_table"


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    mx.install()
    yield
    for name in [n for n in sys.modules if n == "mxnet" or n.startswith("mxnet.")]:
        del sys.modules[name]


def test_installed_under_the_old_name(installed):
    import mxnet
    from mxnet import kvstore, nd  # noqa: F401
    from mxnet.base import MXNetError

    assert mxnet is mx
    assert MXNetError is mx.MXNetError
    assert importlib.import_module("mxnet.ndarray.sparse") is mx.nd.sparse
    with pytest.raises(ModuleNotFoundError, match=r"no mxnet.autograd: write .*docs/compat/mxnet\.md"):
        importlib.import_module("mxnet.autograd")
    with pytest.raises(ImportError, match=r"mxnet.autograd is not provided: .*torch\.nn"):
        from mxnet import autograd  # noqa: F401
    with pytest.raises(ImportError, match=r"mxnet.base.c_array is not provided"):
        from mxnet.base import c_array  # noqa: F401


def test_both_facades_at_once(installed, facade):
    import cntk
    import mxnet

    assert (cntk.__name__, mxnet.__name__) == ("feedline.cntk", "feedline.mxnet")


def test_another_mxnet_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", sys)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(fl.CompatError, match="install"):
        mx.install()


SCRIPT = """
import mxnet as mx

kv = mx.kv.create("local_allreduce_cpu")
kv.init("w", mx.nd.ones((2,)))
kv._set_updater(lambda key, received, stored: print("update", key) or stored.__iadd__(received))
kv.push("w", [mx.nd.ones((2,), mx.cpu(i)) for i in range(3)])
out = mx.nd.zeros((2,))
kv.pull("w", out=out)
print(kv.type, out.asnumpy())
"""


def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = feedline("run", "--as", "mxnet", tmp_path / "script.py")
    assert done.stdout == "update w\nlocal_allreduce_cpu [4. 4.]\n"
