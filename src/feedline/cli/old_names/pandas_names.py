"""Names and arguments that pandas 1.0, 2.0 and 3.0 removed."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cli.old_names.mixed_indexer import MixedIndexer
from feedline.cli.old_names.notes import Notes

#: Lengths of time as old versions of pandas write them.
_FREQUENCIES = {"M": "ME", "BM": "BME", "Q": "QE", "BQ": "BQE", "A": "YE", "Y": "YE", "BA": "BYE", "H": "h", "T": "min",
                "S": "s", "L": "ms", "U": "us", "N": "ns"}  # fmt: skip


def restore_pandas(pandas: Any, notes: Notes) -> None:
    """Add the old names to pandas, a module that has been imported."""
    frame, series, index = pandas.DataFrame, pandas.Series, pandas.Index
    methods: list[tuple[Sequence[Any], str, Callable[..., Any], str]] = [
        ([frame, series], "as_matrix", lambda x, columns=None: (x if columns is None else x[columns]).values, "values"),
        ([frame, series, index], "get_values", lambda x: x.values, "values"),
        ([frame, series], "iteritems", lambda x: x.items(), "items()"),
        ([frame], "get_value", lambda x, row, column: x.at[row, column], "at"),
        ([series], "get_value", lambda x, row: x.at[row], "at"),
        ([frame, series], "set_value", _set_value, "at"),
        ([frame, series], "append", _appending(pandas), "pandas.concat"),
        ([frame], "applymap", lambda x, function, *args, **options: x.map(function, *args, **options), "map"),
        ([frame, series], "mad", lambda x: (x - x.mean()).abs().mean(), "(x - x.mean()).abs().mean()"),
        ([frame], "sort", _sort, "sort_values or sort_index"),
        ([series], "sort", lambda x, **options: x.sort_values(inplace=True, **options), "sort_values(inplace=True)"),
        ([series], "order", lambda x, *args, **options: x.sort_values(*args, **options), "sort_values"),
        ([frame, series], "irow", lambda x, i: x.iloc[i], "iloc"),
        ([frame], "icol", lambda x, i: x.iloc[:, i], "iloc"),
        ([frame, series], "clip_lower", lambda x, threshold: x.clip(lower=threshold), "clip"),
        ([frame, series], "clip_upper", lambda x, threshold: x.clip(upper=threshold), "clip"),
        ([frame, series], "convert_objects", lambda x, **_: x.infer_objects(), "infer_objects()"),
        ([frame], "reindex_axis", lambda x, labels, axis=0: x.reindex(labels, axis=axis), "reindex"),
    ]
    for classes, name, function, instead in methods:
        for cls in classes:
            if not hasattr(cls, name):
                setattr(cls, name, notes.wrap(f"pandas.{cls.__name__}.{name}", function, instead))
    for cls in (frame, series):
        if not hasattr(cls, "ix"):
            cls.ix = property(notes.wrap(f"pandas.{cls.__name__}.ix", MixedIndexer, "loc or iloc"))
        _restore_arguments(cls, notes)
    _restore_positions(series, notes)
    functions: dict[str, tuple[Callable[..., Any], str]] = {
        **{f"rolling_{name}": (_rolling(name), f"rolling(...).{name}()") for name in _STATISTICS},
        **{f"expanding_{name}": (_expanding(name), f"expanding(...).{name}()") for name in _STATISTICS},
        "ewma": (lambda x, *args, **options: x.ewm(*args, **options).mean(), "ewm(...).mean()"),
        "value_counts": (lambda values, **options: series(values).value_counts(**options), "value_counts()"),
        "scatter_matrix": (
            lambda *args, **options: pandas.plotting.scatter_matrix(*args, **options),
            "pandas.plotting.scatter_matrix",
        ),
        "TimeGrouper": (
            lambda freq, **options: pandas.Grouper(freq=_frequency(freq, notes), **options),
            "pandas.Grouper",
        ),
    }
    for name, (function, instead) in functions.items():
        if not hasattr(pandas, name):
            setattr(pandas, name, notes.wrap(f"pandas.{name}", function, instead))
    _restore_attributes(
        pandas,
        notes,
        {
            "datetime": (datetime.datetime, "datetime.datetime"),
            "np": (np, "numpy"),
            **dict.fromkeys(("Int64Index", "UInt64Index", "Float64Index"), (index, "pandas.Index")),
        },
    )
    merge, date_range = pandas.merge, pandas.date_range

    def merge_on_index(left: Any, right: Any, *args: Any, **options: Any) -> Any:
        on = options.get("on")
        sides = [side for side in ("left", "right") if options.get(f"{side}_index")]
        if on is None or len(sides) != 1:
            return merge(left, right, *args, **options)
        side = sides[0]
        notes.used(f"pandas.merge(on=..., {side}_index=True)", f"{'right' if side == 'left' else 'left'}_on=...")
        del options["on"]
        options["right_on" if side == "left" else "left_on"] = on
        if side == "right":
            # Both sides had the keys: those of the other side are the result's.
            return merge(left, right.drop(columns=on, errors="ignore").rename_axis(None), *args, **options)
        return merge(left.drop(columns=on, errors="ignore").rename_axis(None), right, *args, **options)

    def date_range_of_old(*args: Any, **options: Any) -> Any:
        if "freq" in options:
            options["freq"] = _frequency(options["freq"], notes)
        return date_range(*args, **options)

    pandas.merge, pandas.date_range = merge_on_index, date_range_of_old


def _restore_attributes(module: Any, notes: Notes, values: Mapping[str, tuple[Any, str]]) -> None:
    look_up = vars(module).get("__getattr__")

    def get(name: str) -> Any:
        if name not in values:
            if look_up is not None:
                return look_up(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        value, instead = values[name]
        notes.used(f"{module.__name__}.{name}", instead)
        return value

    module.__getattr__ = get


def _restore_arguments(cls: Any, notes: Notes) -> None:
    resample, fillna = cls.resample, cls.fillna

    def resample_by_old(self: Any, rule: Any, *args: Any, **options: Any) -> Any:
        return resample(self, _frequency(rule, notes), *args, **options)

    def fillna_by_method(self: Any, value: Any = None, method: str | None = None, **options: Any) -> Any:
        if method is None:
            return fillna(self, value, **options)
        fill = "ffill" if method in ("ffill", "pad") else "bfill"
        notes.used(f"pandas.{cls.__name__}.fillna(method=...)", fill)
        return getattr(self, fill)(**options)

    cls.resample, cls.fillna = resample_by_old, fillna_by_method


def _restore_positions(series: Any, notes: Notes) -> None:
    """Let integers in ``series[...]`` be positions where the index has no numbers, unless this pandas does so."""
    get, put = series.__getitem__, series.__setitem__
    try:
        get(series([0], index=["a"]), 0)
    except KeyError:
        pass
    else:
        return

    def is_position(data: Any, key: Any) -> bool:
        if isinstance(key, (bool, np.bool_)) or not isinstance(key, (int, np.integer)):
            return False
        return data.index.dtype.kind not in "iuf" and key not in data.index

    def get_item(self: Any, key: Any) -> Any:
        if not is_position(self, key):
            return get(self, key)
        notes.used("pandas.Series[position]", "iloc")
        return self.iloc[key]

    def set_item(self: Any, key: Any, value: Any) -> None:
        if not is_position(self, key):
            put(self, key, value)
        else:
            notes.used("pandas.Series[position]", "iloc")
            self.iloc[key] = value

    series.__getitem__, series.__setitem__ = get_item, set_item


def _frequency(rule: Any, notes: Notes) -> Any:
    """Return a length of time under its present name. `'2M'` becomes `'2ME'`."""
    if not isinstance(rule, str):
        return rule
    letters = rule.lstrip("-0123456789 ")
    new = _FREQUENCIES.get(letters)
    if new is None:
        return rule
    notes.used(f"pandas frequency {letters!r}", repr(new))
    return rule[: len(rule) - len(letters)] + new


_STATISTICS = ("mean", "std", "var", "sum", "min", "max", "median", "count")


def _rolling(statistic: str) -> Callable[..., Any]:
    def roll(values: Any, window: int, *args: Any, **options: Any) -> Any:
        return getattr(values.rolling(window, *args, **options), statistic)()

    return roll


def _expanding(statistic: str) -> Callable[..., Any]:
    def expand(values: Any, *args: Any, **options: Any) -> Any:
        return getattr(values.expanding(*args, **options), statistic)()

    return expand


def _set_value(data: Any, *key_and_value: Any) -> Any:
    *key, value = key_and_value
    data.at[tuple(key) if len(key) > 1 else key[0]] = value
    return data


def _sort(frame: Any, columns: Any = None, **options: Any) -> Any:
    return frame.sort_index(**options) if columns is None else frame.sort_values(columns, **options)


def _appending(pandas: Any) -> Callable[..., Any]:
    def append(data: Any, other: Any, ignore_index: bool = False, **options: Any) -> Any:
        items = list(other) if isinstance(other, (list, tuple)) else [other]
        if isinstance(data, pandas.DataFrame):
            if items and isinstance(items[0], Mapping):
                items = [pandas.DataFrame(items)]
            items = [x.to_frame().T if isinstance(x, pandas.Series) else x for x in items]
        return pandas.concat([data, *items], ignore_index=ignore_index, **options)

    return append
