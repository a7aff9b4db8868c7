"""Values within nested columns, by path: ``translation.en``, and ``messages[].content`` for a field of each struct of
a list, whose items are then a sequence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from feedline.errors import SchemaError
from feedline.feed.formats.indexed.value_paths import Steps, join_steps, steps_of

_SHOWN = 60  # paths in an error


class ColumnPath(NamedTuple):
    """The way to a value.

    Attributes:
        column: name of the column.
        steps: from its values on, names of fields of structs, and None for the items of a list.
    """

    column: str
    steps: tuple[str | None, ...] = ()

    @property
    def in_list(self) -> bool:
        """Whether it leads to the items of a list."""
        return None in self.steps


def storage(kind: Any) -> Any:
    """Return the type in which an extension type is stored, or the type itself."""
    return kind.storage_type if hasattr(kind, "storage_type") else kind


def is_list(kind: Any) -> bool:
    """Return whether arrays of a type are lists of any length."""
    import pyarrow as pa

    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def locate(schema: Any, field: str, file: str) -> ColumnPath:
    """Return the way to a value of an Arrow schema. A column of that very name takes precedence.

    Args:
        schema: the schema.
        field: name of a column, or path.
        file: the file, for errors.

    Raises:
        SchemaError: there is no such value, there are several, or it is in lists within lists.
    """
    path = path_of(field, schema.names, file)
    if len(schema.get_all_field_indices(path.column)) > 1:
        raise SchemaError(f"expected a single column {path.column!r} in {file}, got several of that name")
    if field_at(schema, path) is None:
        listed = list(value_paths(schema))
        dots = f", ... ({len(listed)} in all)" if len(listed) > _SHOWN else ""
        raise SchemaError(
            f"expected a column {field!r} in {file}, which has {', '.join(map(repr, listed[:_SHOWN]))}{dots}"
        )
    return path


def path_of(field: str, columns: Collection[str], file: str) -> ColumnPath:
    """Return the way to a value. A name of one of the columns takes precedence.

    Raises:
        SchemaError: it is in lists within lists.
    """
    if field in columns:
        return ColumnPath(field)
    column, *steps = steps_of(field)
    path = ColumnPath(column or "", tuple(steps))
    if path.steps.count(None) > 1:
        raise SchemaError(
            f"expected at most one list on the way to a stream, got column {field!r} of {file}; declare the outer list "
            f'as its JSON text: fl.Stream(dtype="bytes", field={join_steps([path.column, *_first_list(path)])!r})'
        )
    return path


def _first_list(path: ColumnPath) -> tuple[str | None, ...]:
    return path.steps[: path.steps.index(None)]


def field_at(schema: Any, path: ColumnPath) -> Any:
    """Return the Arrow field at a path, with the type of the value, or None if there is none, or several."""
    if len(schema.get_all_field_indices(path.column)) != 1:
        return None
    field = schema.field(path.column)
    for step in path.steps:
        field = _inner_field(storage(field.type), step)
        if field is None:
            return None
    return field


def _inner_field(kind: Any, step: str | None) -> Any:
    import pyarrow as pa

    if step is None:
        return kind.value_field if is_list(kind) or pa.types.is_fixed_size_list(kind) else None
    return kind.field(step) if pa.types.is_struct(kind) and len(kind.get_all_field_indices(step)) == 1 else None


def value_paths(schema: Any) -> Iterator[str]:
    """Yield the paths of all values that have no fields, column by column. Columns are named as they are."""
    for field in schema:
        inner = list(_paths_within(field.type, [field.name], in_list=False))
        yield from inner if inner != [[field.name]] else [field.name]


def nested_paths(schema: Any) -> list[str]:
    """Return the paths of the values within nested columns."""
    return [path for path in value_paths(schema) if path not in schema.names]


def _paths_within(kind: Any, steps: Steps, *, in_list: bool) -> Iterator[Any]:
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _paths_within(kind.field(i).type, [*steps, kind.field(i).name], in_list=in_list)
    elif not in_list and _lists_structs(kind):
        yield from _paths_within(kind.value_type, [*steps, None], in_list=True)
    else:
        yield join_steps(steps) if len(steps) > 1 else steps


def _lists_structs(kind: Any) -> bool:
    import pyarrow as pa

    return bool((is_list(kind) or pa.types.is_fixed_size_list(kind)) and pa.types.is_struct(storage(kind.value_type)))


def leaf_span(schema: Any, path: ColumnPath) -> tuple[int, int]:
    """Return the number of the first leaf below a path, counted through all columns, and the number behind the last.

    The path must lead to a value.
    """
    begin = 0
    for field in schema:
        if field.name == path.column:
            break
        begin += leaf_count(field.type)
    kind = storage(schema.field(path.column).type)
    for step in path.steps:
        if step is None:
            kind = storage(kind.value_type)
            continue
        at = kind.get_field_index(step)
        begin += sum(leaf_count(kind.field(i).type) for i in range(at))
        kind = storage(kind.field(at).type)
    return begin, begin + leaf_count(kind)


def leaf_count(kind: Any) -> int:
    """Return the number of leaf columns of a type."""
    return sum(map(leaf_count, inner_types(kind))) or 1


def inner_types(kind: Any) -> list[Any]:
    """Return the types of which a nested type consists, or none. Dictionaries are not nested."""
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_struct(kind):
        return [kind.field(i).type for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if hasattr(kind, "value_type") and not pa.types.is_dictionary(kind) else []
