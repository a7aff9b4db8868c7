"""`import cntk` imports the façade if it is installed, and the table of names matches its modules."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import feedline as fl
import feedline.cntk as C
from tests.cli.shell import feedline
from tests.compat import tables
from tests.docs import cntk_table
from tests.docs.cntk_table import NAMES
from tests.docs.pages import IMPORTED_FROM

MODULES = list(NAMES)

# ---- the table ------------------------------------------------------------------------------------


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


# Modules of which few names are of use to scripts: the bindings.
UNLISTED = {"cntk.cntk_py"}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in UNLISTED])
def test_names_of_the_original_are_there_or_in_the_table(name):
    tables.check_original(name, NAMES[name])


def test_modules_of_the_original_are_there_or_in_a_table():
    """A module is in the table of its package, or the package is in its own package's table."""

    def absent(name):
        package, _, last = name.rpartition(".")
        return bool(package) and ((package in NAMES and last in NAMES[package].absent) or absent(package))

    original = [name for name in tables.ORIGINAL if name.startswith("cntk")]
    assert [name for name in original if name not in NAMES and not absent(name)] == []
    assert absent("cntk.internal.sanitize")
    assert not absent("cntk.no_such_module")


def test_members_of_the_original_are_in_a_table(monkeypatch):
    assert tables.missing_members(NAMES) == []
    monkeypatch.setitem(tables.ORIGINAL, "cntk.learners", ["Learner.no_such_member", "UserLearner.learning_rate"])
    assert tables.missing_members(NAMES) == ["cntk.learners Learner.no_such_member"]


def test_an_absent_member_names_its_replacement():
    view = C.NDArrayView.from_dense(np.ones(2, np.float32))
    for owner in (view, C.NDArrayView):
        assert not hasattr(owner, "copy_from")
        with pytest.raises(fl.CompatError, match=r"cntk\.core\.NDArrayView\.copy_from is not provided: use NumPy"):
            owner.copy_from(view)
    with pytest.raises(fl.CompatError, match=r"cntk\.ops\.Function\.set_name is not provided: set `name`"):
        C.relu(C.input_variable(2)).set_name("x")


@pytest.mark.parametrize("name", MODULES)
def test_what_is_absent_is_no_attribute(name):
    tables.check_no_attribute(name, NAMES[name])


def test_an_absent_name_is_caught_as_an_attribute_that_is_not_there():
    """The ways in which old scripts ask."""
    assert not hasattr(C, "lattice_sequence_with_softmax")
    assert getattr(C.io, "no_such_reader", "other") == "other"
    with pytest.raises(AttributeError, match="write it in torch"):
        _ = C.lattice_sequence_with_softmax
    error = fl.CompatError("expected x")
    assert (isinstance(error, fl.FeedlineError), isinstance(error, AttributeError)) == (True, True)
    assert str(pickle.loads(pickle.dumps(error))) == "expected x"


def test_page_is_made_from_the_table():
    assert cntk_table.PAGE.read_text("utf-8") == cntk_table.page(), "run: python -m tests.docs.cntk_table"


# ---- the old name ---------------------------------------------------------------------------------


def test_installed_under_the_old_name(facade):
    import cntk
    import cntk.io
    from cntk.io import transforms

    assert cntk is C
    assert cntk.io is C.io is sys.modules["cntk.io"]
    assert transforms is C.io.transforms
    assert C.io.__spec__.name == "feedline.cntk.io"
    assert importlib.import_module("cntk.train.training_session").DataUnit is C.DataUnit
    with pytest.raises(ModuleNotFoundError, match=r"docs/compat/cntk\.md") as caught:
        importlib.import_module("cntk.contrib")
    assert caught.value.name == "cntk.contrib"
    with pytest.raises(ImportError, match="no_such_name"):
        from cntk.io import no_such_name  # noqa: F401
    with pytest.raises(ImportError, match=r"cntk\.sample_installer is not provided: CNTK's examples"):
        from cntk import sample_installer  # noqa: F401
    with pytest.raises(ImportError, match=r"cntk\.core\.user_function is not provided: use `cntk\.user_function`"):
        from cntk.core import user_function  # noqa: F401
    C.install()
    assert sum(type(finder).__name__ == "Alias" for finder in sys.meta_path) == 1


def test_a_function_keeps_the_name_that_it_shares_with_its_module(facade):
    """`cntk.train.training_session` is a function, in whatever way scripts come by it."""
    import cntk
    import cntk.train.training_session

    assert inspect.isfunction(cntk.train.training_session)
    assert cntk.train.training_session is cntk.training_session is C.training_session
    namespace = {}
    exec("from cntk.train.training_session import *\nfrom cntk import *", namespace)
    assert namespace["CheckpointConfig"] is C.train.CheckpointConfig
    assert namespace["training_session"] is C.training_session
    assert namespace["sgd"] is C.learners.sgd


def test_another_cntk_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "cntk", sys)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(fl.CompatError, match="install"):
        C.install()


def loaded_by(statement, names):
    code = f"{statement}\nimport sys\nprint(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": IMPORTED_FROM},
    )
    return done.stdout.split()


def test_feedline_does_not_import_the_facade():
    assert loaded_by("import feedline", ("feedline.cntk", "cntk")) == []


def test_the_facade_imports_numpy_alone_and_takes_no_name():
    assert loaded_by("import feedline.cntk", ("feedline.cntk", "cntk", "torch", "scipy", "pyarrow")) == [
        "feedline.cntk"
    ]


# ---- feedline run ---------------------------------------------------------------------------------

SCRIPT = """
import sys
import cntk as C
from cntk.io import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from beside import FIELD

streams = StreamDefs(x=StreamDef(field=FIELD, shape=1))
source = MinibatchSource(CTFDeserializer(sys.argv[1], streams), randomize=False, max_sweeps=1)
while True:
    minibatch = source.next_minibatch(2, {"x": source.streams.x})
    if not minibatch:
        break
    print(minibatch["x"].asarray().ravel().tolist(), __name__, sys.argv[2:])
sys.exit(7)
"""


def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("FIELD = 'X'\n")
    (tmp_path / "data.ctf").write_text("|X 1\n|X 2\n|X 3\n")
    done = feedline("run", "--as", "cntk", tmp_path / "script.py", tmp_path / "data.ctf", "--as", "-x", code=7)
    assert done.stdout == "[1.0, 2.0] __main__ ['--as', '-x']\n[3.0] __main__ ['--as', '-x']\n"
    assert done.stderr == ""


def test_a_script_keeps_its_traceback(tmp_path):
    (tmp_path / "script.py").write_text("import cntk\nraise KeyError('mine')\n")
    done = feedline("run", "--as", "cntk", tmp_path / "script.py", code=1)
    assert 'script.py", line 2' in done.stderr
    assert done.stderr.endswith("KeyError: 'mine'\n")


def test_run_refuses_unknown_names_and_missing_files(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')\n")
    assert "or mxnet, got 'theano'" in feedline("run", "--as", "theano", tmp_path / "script.py", code=2).stderr
    assert "which is not a file" in feedline("run", "--as", "cntk", tmp_path / "other.py", code=1).stderr
    assert "--as" in feedline("run", tmp_path / "script.py", code=2).stderr
