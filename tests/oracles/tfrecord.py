"""TFRecord files written by plain Python, and their messages read by protobuf itself."""

from __future__ import annotations

import functools
import struct

from feedline.feed.formats.detect_tfrecord import masked_crc32c


def varint(n):
    """Encode a number in 7 bits a byte. A negative one takes ten."""
    n &= 2**64 - 1
    found = bytearray()
    while n >= 0x80:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*found, n])


def tag(number, wire):
    return varint(number << 3 | wire)


def field(number, body):
    """A field that holds bytes or a message."""
    return tag(number, 2) + varint(len(body)) + body


class Raw(bytes):
    """A Feature that is written already."""


NO_BYTES, NO_FLOATS, NO_INTS = (Raw(field(kind, b"")) for kind in (1, 2, 3))
"""Features of empty lists."""


def feature(values, packed=True):
    """Encode a Feature of bytes or texts, floats, or integers, with numbers packed or one by one."""
    if isinstance(values, Raw):
        return values
    values = values if isinstance(values, (list, tuple)) else [values]
    if values and isinstance(values[0], (bytes, str)):
        return field(1, b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values))
    return field(2 if values and isinstance(values[0], float) else 3, numbers_of(values, packed))


def numbers_of(values, packed=True):
    """The fields of a list of numbers, all floats or all integers."""
    floats = bool(values) and isinstance(values[0], float)
    parts = [struct.pack("<f", v) if floats else varint(v) for v in values]
    one = tag(1, 5 if floats else 0)
    return field(1, b"".join(parts)) if packed else b"".join(one + part for part in parts)


def entry(name, value):
    """An entry of a map."""
    return field(1, field(1, name.encode() if isinstance(name, str) else name) + field(2, value))


def example(**features):
    """A tf.train.Example."""
    return field(1, b"".join(entry(name, feature(values)) for name, values in features.items()))


def sequence_example(context, lists):
    """Encode a tf.train.SequenceExample. ``lists``: by name a list of steps."""
    steps = {name: b"".join(field(1, feature(step)) for step in found) for name, found in lists.items()}
    return example(**context) + field(2, b"".join(entry(name, body) for name, body in steps.items()))


def record(message):
    """A message in its frame."""
    length = struct.pack("<Q", len(message))
    sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, message)]
    return length + sums[0] + message + sums[1]


def tfrecords(messages):
    """The content of a file."""
    return b"".join(map(record, messages))


@functools.cache
def message_type():
    """protobuf's class of SequenceExample, of which an Example is one without feature lists."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")

    def message(name, **fields):
        made = file.message_type.add(name=name)
        for number, (called, what) in enumerate(fields.items(), 1):
            label = kind.LABEL_OPTIONAL if isinstance(what, str) else kind.LABEL_REPEATED
            what = what if isinstance(what, (int, str)) else what[0]
            of = (
                {"type": what} if isinstance(what, int) else {"type": kind.TYPE_MESSAGE, "type_name": f".oracle.{what}"}
            )
            made.field.add(name=called, number=number, label=label, **of)
        return made

    def map_of(name, called, what):
        entries = called.title().replace("_", "") + "Entry"
        inner = message(name, **{called: [f"{name}.{entries}"]}).nested_type.add(name=entries)
        inner.options.map_entry = True
        inner.field.add(name="key", number=1, label=kind.LABEL_OPTIONAL, type=kind.TYPE_STRING)
        value = {"type": kind.TYPE_MESSAGE, "type_name": f".oracle.{what}"}
        inner.field.add(name="value", number=2, label=kind.LABEL_OPTIONAL, **value)

    message("BytesList", value=kind.TYPE_BYTES)
    message("FloatList", value=kind.TYPE_FLOAT)
    message("Int64List", value=kind.TYPE_INT64)
    one = message("Feature", bytes_list="BytesList", float_list="FloatList", int64_list="Int64List")
    one.oneof_decl.add(name="kind")
    for part in one.field:
        part.oneof_index = 0
    map_of("Features", "feature", "Feature")
    message("FeatureList", feature=["Feature"])
    map_of("FeatureLists", "feature_list", "FeatureList")
    message("SequenceExample", context="Features", feature_lists="FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("oracle.SequenceExample"))


class Disputed(Exception):
    """An entry of a map has unknown fields: some of protobuf's implementations skip them, others the whole entry."""


def parsed(message):
    """(features, feature lists) of a message, as protobuf reads it: by name (kind, values), or a list of these.

    Raises:
        google.protobuf.message.DecodeError: it is none.
        Disputed: its implementations differ.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = message_type().FromString(message)
    for part in (found.context, found.feature_lists):
        if any(one.field_number == 1 and one.wire_type == 2 for one in UnknownFieldSet(part)):
            raise Disputed

    def plain(one):
        kind = one.WhichOneof("kind")
        return kind, [] if kind is None else list(getattr(one, kind).value)

    features = {name: plain(one) for name, one in found.context.feature.items()}
    return features, {k: [plain(one) for one in v.feature] for k, v in found.feature_lists.feature_list.items()}
