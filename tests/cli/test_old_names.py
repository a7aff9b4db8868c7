"""`feedline run` with names that newer versions of NumPy and pandas removed: they work, and notes name replacements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.shell import feedline
from tests.warm import run


def run_script(path, text):
    """Run a script under MXNet's names. Return the lines of stdout and stderr."""
    path.write_text(text)
    done = feedline("run", "--as", "mxnet", path)
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_names_of_numpy(tmp_path):
    script = tmp_path / "old.py"
    printed, notes = run_script(
        script,
        "import numpy as np\n"
        "print(np.zeros(2, np.float).dtype, np.float is float, np.int(2.5), np.NINF)\n"
        "print(np.asscalar(np.array([3])), np.product([2, 3]), np.in1d([[1, 2], [3, 4]], [2]).tolist())\n"
        "x = np.fromstring(b'\\x01\\x02', dtype=np.uint8)\n"
        "x[0] = 7\n"
        "print(x.tolist(), np.fromstring('1 2', sep=' ').tolist(), np.lib.pad([1], 1, 'constant').tolist())\n"
        "from numpy import unicode_\n"
        "print(np.asfarray([1]).dtype, np.msort(np.array([[2], [1]])).tolist(), np.trapz([1, 3]))\n",
    )
    assert printed == [
        "float64 True 2 -inf",
        "3 6 [False, True, False, False]",
        "[7, 2] [1.0, 2.0] [0, 1, 0]",
        "float64 [[1], [2]] 2.0",
    ]
    expected = [(2, "float", "float"), (2, "int", "int"), (2, "NINF", "-np.inf"), (3, "asscalar", "a.item()")]
    expected += [(3, "product", "np.prod"), (3, "in1d", "np.isin")]
    expected += [(4, "fromstring without sep", "np.frombuffer(...).copy()"), (6, "lib.pad", "np.pad")]
    expected += [(7, "unicode_", "np.str_"), (8, "asfarray", "np.asarray(a, float)")]
    expected += [(8, "msort", "np.sort(a, axis=0)"), (8, "trapz", "np.trapezoid")]
    assert notes == [
        f"{script}:{line}: numpy.{name} is not in numpy {np.__version__}: used {instead}"
        for line, name, instead in expected
    ]


def test_names_that_no_version_had_are_missing(tmp_path):
    (tmp_path / "old.py").write_text("import numpy as np\nnp.flaot")
    assert "AttributeError: module 'numpy' has no attribute 'flaot'" in feedline(
        "run", "--as", "mxnet", tmp_path / "old.py", code=1
    ).stderr.replace('"', "'")


def test_importing_a_facade_leaves_numpy_as_it_is():
    code = "import numpy, feedline.mxnet as mx\nmx.install()\nimport mxnet\nprint(hasattr(numpy, 'float'))"
    assert run(["-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_positions_of_seaborn(tmp_path):
    """A module with the signatures of seaborn 0.13, which the tests do not install."""
    (tmp_path / "seaborn.py").write_text(
        "__version__ = '0.13.2'\n"
        "def barplot(data=None, *, x=None, y=None, hue=None, color=None):\n"
        "    return data, x, y, hue, color\n"
        "def set_theme(style, palette=None):\n"
        "    return style, palette\n"
    )
    printed, notes = run_script(
        tmp_path / "old.py",
        "import seaborn as sns\n"
        "print(sns.barplot([1, 2], [3, 4], color='red'), sns.barplot(1, 2, 3))\n"
        "print(sns.barplot({'a': 1}, x='a'), sns.set_theme('a', 'b'), sns.barplot.__name__)\n",
    )
    assert printed == [
        "(None, [1, 2], [3, 4], None, 'red') (None, 1, 2, 3, None)",
        "({'a': 1}, 'a', None, None, None) ('a', 'b') barplot",
    ]
    assert notes == [
        f"{tmp_path / 'old.py'}:2: seaborn.barplot(x, y) is not in seaborn 0.13.2: used barplot(x=..., y=...)"
    ]


def test_distances_of_scipy(tmp_path):
    """A vector may have axes of length 1, as a network's output for a single sample has."""
    pytest.importorskip("scipy", reason="scipy is not installed")
    printed, notes = run_script(
        tmp_path / "old.py",
        "import numpy as np\n"
        "from scipy.spatial.distance import cosine, euclidean\n"
        "print(cosine(np.array([[1.0, 0.0]]), [0.0, 2.0]), euclidean([[[3.0]]], [[7.0]]), cosine([1.0], [2.0]))\n"
        "try:\n"
        "    cosine(np.ones((2, 2)), np.ones((2, 2)))\n"
        "except ValueError as error:\n"
        "    print('1-D' in str(error))\n",
    )
    assert printed == ["1.0 4.0 0.0", "True"]
    assert [note.split(": ")[1].split(" is not")[0].rpartition(".")[2] for note in notes] == [
        "cosine of more than one axis",
        "euclidean of more than one axis",
    ]


@pytest.mark.frameworks("pandas")
def test_names_of_pandas(tmp_path):
    printed, notes = run_script(
        tmp_path / "old.py",
        "import pandas as pd\n"
        "frame = pd.DataFrame({'a': [1, 2, 3], 'b': [4.0, 5, 6]}, index=list('xyz'))\n"
        "print(frame.as_matrix().tolist(), frame.a.as_matrix().tolist(), frame.as_matrix(['b']).tolist())\n"
        "print([name for name, _ in frame.iteritems()], frame.get_value('y', 'b'), frame.sort('a').index[0])\n"
        "frame.set_value('z', 'a', 7)\n"
        "print(frame.append(frame).shape, frame.append({'a': 1, 'b': 2}, ignore_index=True).values[3].tolist())\n"
        "print(pd.rolling_mean(frame.b, 2).tolist()[1:], pd.datetime(2001, 1, 1).year)\n"
        "days = pd.Series(range(59), index=pd.date_range('2001-01-01', periods=59))\n"
        "print(days.resample('M').sum().tolist(), days.astype(float).shift(-1).fillna(method='ffill').iloc[-1])\n"
        "left = pd.DataFrame({'v': [1, 2, 3], 'day': ['p', 'p', 'q']})\n"
        "right = left.groupby('day').max()\n"
        "right.columns = ['top']\n"
        "print(pd.merge(left, right, right_index=True, on='day').top.tolist())\n",
    )
    assert printed == [
        "[[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]] [1, 2, 3] [[4.0], [5.0], [6.0]]",
        "['a', 'b'] 5.0 x",
        "(6, 2) [1.0, 2.0]",
        "[4.5, 5.5] 2001",
        "[465, 1246] 58.0",
        "[2, 2, 3]",
    ]
    assert [note.split(": ")[1].split(" is not")[0].removeprefix("pandas") for note in notes] == [
        ".DataFrame.as_matrix",
        ".Series.as_matrix",
        ".DataFrame.iteritems",
        ".DataFrame.get_value",
        ".DataFrame.sort",
        ".DataFrame.set_value",
        ".DataFrame.append",
        ".rolling_mean",
        ".datetime",
        " frequency 'M'",
        ".Series.fillna(method=...)",
        ".merge(on=..., right_index=True)",
    ]
    assert notes[0].startswith(f"{tmp_path / 'old.py'}:3: ")


@pytest.mark.frameworks("pandas")
def test_ix_of_pandas(tmp_path):
    """Labels and positions may be mixed. Integers are labels where an axis has integers."""
    printed, notes = run_script(
        tmp_path / "old.py",
        "import pandas as pd\n"
        "frame = pd.DataFrame({'a': [1, 2, 3], 'b': [4, 5, 6]}, index=list('xyz'))\n"
        "print(frame.ix[0, 'a'], frame.ix['x'].tolist(), frame.ix[:2, ['b']].values.tolist(), frame.a.ix[1])\n"
        "print(frame.ix['x':'y', 1].tolist(), frame.ix[frame.a > 1, 0].tolist(), frame.ix[['z', 'x'], 0].tolist())\n"
        "frame.ix[1, 'b'] = 9\n"
        "frame.ix['w'] = 0\n"
        "print(frame.values.tolist())\n"
        "print(pd.Series([1, 2, 3], index=[3, 2, 1]).ix[1], pd.Series([1, 2, 3], index=[3, 2, 1]).ix[3:2].tolist())\n",
    )
    assert printed == ["1 [1, 4] [[4], [5]] 2", "[4, 5] [2, 3] [3, 1]", "[[1, 4], [2, 9], [3, 6], [0, 0]]", "3 [1, 2]"]
    assert len(notes) == 2


@pytest.mark.frameworks("pandas")
def test_positions_in_a_series_of_pandas(tmp_path):
    """Integers are positions where an index has no numbers. Elsewhere they are labels."""
    printed, notes = run_script(
        tmp_path / "old.py",
        "import pandas as pd\n"
        "days = pd.Series([1, 2, 3], index=pd.date_range('2017-01-02', periods=3))\n"
        "days[1] = 7\n"
        "print(days[0], days[-1], days.tolist(), days['2017-01-03'], days[days > 2].tolist(), days[:2].tolist())\n"
        "print(pd.Series([1, 2], index=[1, 0])[0], pd.Series([1, 2], index=['a', 0])[0])\n"
        "try:\n"
        "    print(pd.Series([1, 2], index=[1.0, 2.0])[0])\n"
        "except KeyError:\n"
        "    print('no label')\n",
    )
    assert printed == ["1 3 [1, 7, 3] 7 [7, 3] [1, 7]", "2 2", "no label"]
    assert len(notes) == 1
    assert ":3: pandas.Series[position] is not in pandas" in notes[0]
