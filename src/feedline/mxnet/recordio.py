"""`mxnet.recordio`: reading and writing RecordIO files record by record, and packing labels and pictures into records.

`feedline.RecordIODeserializer` reads such files many records at a time. Readers read at offsets of their own, so a
forked process, such as a worker of a loader, and threads that call `read_idx`, may share one.
"""

from __future__ import annotations

import io
import numbers
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.images import decoders
from feedline.mxnet._names import names_of
from feedline.mxnet.base import MXNetError

__all__, __getattr__ = names_of(__name__)

_MAGIC = struct.pack("<I", 0xCED7230A)
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)  # kinds of parts
_HEADER = struct.Struct("<IfQQ")
_MAX_PIXELS = 1 << 30


class IRHeader(NamedTuple):
    """Header of a record.

    Attributes:
        flag: the number of labels if they are several, else 0.
        label: the label, or labels.
        id, id2: numbers.
    """

    flag: int
    label: Any
    id: int
    id2: int


class MXRecordIO:
    """Reader or writer of a RecordIO file.

    Args:
        uri: path of the file.
        flag: ``"r"`` or ``"w"``.

    Raises:
        ValueError: another flag.
    """

    def __init__(self, uri: str, flag: str) -> None:
        self.uri, self.flag = os.fspath(uri), flag
        self.open()

    def open(self) -> None:
        """Open the file, at its beginning. A writer empties it."""
        if self.flag not in ("r", "w"):
            raise ValueError(f"Invalid flag {self.flag}")
        self.writable, self.is_open = self.flag == "w", True
        self._file: BinaryIO = open(self.uri, "wb" if self.writable else "rb")  # noqa: SIM115 - `close` closes it
        self._at, self._process = 0, os.getpid()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.is_open:
            self.is_open = False
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "is_open"):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.writable:
            raise TypeError("expected a reader, got a writer, which cannot be in two processes")
        return {name: value for name, value in self.__dict__.items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        was_open = state["is_open"]
        self.__dict__.update({**state, "is_open": False})
        if was_open:
            self.open()

    def reset(self) -> None:
        """Read from the beginning again. A writer empties the file."""
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        """Write a record.

        Raises:
            MXNetError: this is a reader, another process opened the file, or the record has 2**29 bytes or more.
        """
        self._check(writes=True)
        if len(buf) >> _LENGTH_BITS:
            raise MXNetError(f"expected a record of fewer than {1 << _LENGTH_BITS} bytes, got {len(buf)}")
        self._file.write(b"".join(_parts(bytes(buf))))

    def read(self) -> bytes | None:
        """Return the next record, or None at the end.

        Raises:
            MXNetError: this is a writer, or the file is damaged here.
        """
        self._check(writes=False)
        record, self._at = self._read_at(self._at)
        return record

    def _check(self, writes: bool) -> None:
        if self.writable != writes or not self.is_open:
            state = "a closed file" if not self.is_open else "a writer" if self.writable else "a reader"
            raise MXNetError(f"expected {self.uri} to be open for {'writing' if writes else 'reading'}, got {state}")
        if writes and self._process != os.getpid():
            raise MXNetError(f"expected one process to write {self.uri}, got another one: open a file in each")

    def _read_at(self, byte: int) -> tuple[bytes | None, int]:
        """Return the record at an offset, or None at the end, and the offset of the next one."""
        parts: list[bytes] = []
        at = byte
        while True:
            head = os.pread(self._file.fileno(), 8, at)
            if not head and not parts:
                return None, at
            kind, size = divmod(int.from_bytes(head[4:], "little"), 1 << _LENGTH_BITS)
            allowed = (_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)
            if len(head) < 8 or head[:4] != _MAGIC or kind not in allowed:
                expected = "the next part of a record" if parts else "a record"
                raise MXNetError(f"expected {expected} in {self.uri} at byte {at}, got {head!r}: the file is damaged")
            data = os.pread(self._file.fileno(), size, at + 8)
            if len(data) < size:
                raise MXNetError(
                    f"expected {size} bytes in {self.uri} from byte {at + 8} on, got {len(data)}: it is cut"
                )
            parts.append(data)
            at += 8 + size + -size % 4
            if kind in (_WHOLE, _LAST):
                return _MAGIC.join(parts), at


class MXIndexedRecordIO(MXRecordIO):
    """Reader or writer of a RecordIO file with an index, whose records have keys.

    Args:
        idx_path: path of the index, a text of keys and offsets. A reader without the file has no keys.
        uri: path of the file.
        flag: ``"r"`` or ``"w"``.
        key_type: function that makes a key from its text.

    Attributes:
        idx: offsets by key.
        keys: the keys, in the order of the index.
    """

    def __init__(self, idx_path: str, uri: str, flag: str, key_type: Callable[[str], Any] = int) -> None:
        self.idx_path, self.key_type = os.fspath(idx_path), key_type
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self.fidx: TextIO | None = None
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open the files. A writer empties them.

        Raises:
            MXNetError: a line of the index is no key and offset.
        """
        super().open()
        self.idx, self.keys = {}, []
        if self.writable:
            self.fidx = open(self.idx_path, "w")  # noqa: SIM115 - `close` closes it
        elif os.path.isfile(self.idx_path):
            with open(self.idx_path) as text:
                for number, line in enumerate(text, 1):
                    try:
                        name, offset = line.strip().split("\t")
                        key = self.key_type(name)
                        self.idx[key] = int(offset)
                    except ValueError as error:
                        what = f"expected a key, a tab and an offset in line {number} of {self.idx_path}, got {line!r}"
                        raise MXNetError(what) from error
                    self.keys.append(key)

    def close(self) -> None:
        """Close the files. Idempotent."""
        super().close()
        if self.fidx is not None:
            self.fidx.close()
            self.fidx = None

    def seek(self, idx: Any) -> None:
        """Make the record of a key the next one to read.

        Raises:
            KeyError: there is no such key.
        """
        self._check(writes=False)
        self._at = self.idx[idx]

    def tell(self) -> int:
        """Return the offset of the next record to be written."""
        self._check(writes=True)
        return self._file.tell()

    def read_idx(self, idx: Any) -> bytes | None:
        """Return the record of a key, and make the one after it the next to read.

        Raises:
            KeyError: there is no such key.
            MXNetError: the file is damaged there.
        """
        self._check(writes=False)
        record, self._at = self._read_at(self.idx[idx])
        return record

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Write a record under a key.

        Raises:
            MXNetError: as for `write`.
        """
        key, offset = self.key_type(idx), self.tell()
        self.write(buf)
        assert self.fidx is not None
        self.fidx.write(f"{key}\t{offset}\n")
        self.idx[key] = offset
        self.keys.append(key)


def _parts(record: bytes) -> Iterator[bytes]:
    """Yield the parts of a record. It is split where the magic number stands in it at a multiple of 4."""
    begin, at = 0, record.find(_MAGIC)
    while at >= 0:
        if at % 4:
            at = record.find(_MAGIC, at + 1)
            continue
        yield from _part(_MIDDLE if begin else _FIRST, record[begin:at])
        begin = at + 4
        at = record.find(_MAGIC, begin)
    yield from _part(_LAST if begin else _WHOLE, record[begin:])


def _part(kind: int, data: bytes) -> Iterator[bytes]:
    yield _MAGIC + struct.pack("<I", kind << _LENGTH_BITS | len(data))
    yield data
    yield bytes(-len(data) % 4)


def pack(header: Any, s: bytes) -> bytes:
    """Return a record of a header and the bytes of a picture. The label is a number, or numbers, of any shape."""
    header = IRHeader(*header)
    if isinstance(header.label, numbers.Number):
        return _HEADER.pack(0, header.label, header.id, header.id2) + s
    labels = np.asarray(header.label, np.float32)
    return _HEADER.pack(labels.size, 0, header.id, header.id2) + labels.tobytes() + s


def unpack(s: bytes) -> tuple[Any, bytes]:
    """Return the header and the picture's bytes of a record. Several labels are a float32 array.

    Raises:
        MXNetError: the record is shorter than its header and labels.
    """
    if len(s) < _HEADER.size:
        raise MXNetError(f"expected a record of at least {_HEADER.size} bytes, got {len(s)}")
    header = IRHeader(*_HEADER.unpack_from(s))
    end = _HEADER.size + 4 * header.flag
    if len(s) < end:
        raise MXNetError(f"expected a record of at least {end} bytes for {header.flag} labels, got {len(s)}")
    if header.flag:
        header = header._replace(label=np.frombuffer(s, np.float32, header.flag, _HEADER.size))
    return header, s[end:]


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, NDArray[np.uint8]]:
    """Return the header and the pixels of a record, uint8 (height, width, 3) in BGR, or (height, width) if grey.

    Args:
        s: the record.
        iscolor: 1 for BGR, 0 for grey, -1 for grey if the picture is grey.

    Raises:
        MXNetError: the record is shorter than its header and labels.
        DataError: the picture cannot be decoded.
    """
    header, data = unpack(s)
    if iscolor < 0:
        with decoders.open_with_pillow(data) as picture:
            iscolor = int(picture.mode not in ("1", "L", "I;16", "I", "F"))
    return header, decoded(data, "BGR" if iscolor else "grey")


def decoded(data: bytes, color: str) -> NDArray[np.uint8]:
    """Return the pixels of an encoded picture, uint8 (height, width, 3), or (height, width) if grey.

    Raises:
        DataError: it cannot be decoded.
    """
    array = np.frombuffer(data, np.uint8)
    (head,) = _native.picture_headers(array, np.array([0, len(array)]))
    pixels = decoders.decode(array, head, color=color, upright=False, max_pixels=_MAX_PIXELS)
    return pixels[:, :, 0] if color == "grey" else pixels


def pack_img(header: Any, img: NDArray[np.uint8], quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """Return a record of a header and a picture, which Pillow encodes.

    Args:
        header: the header.
        img: uint8 (height, width, 3) in BGR, or (height, width).
        quality: of a JPEG, 1 to 100; of a PNG, its compression, 0 to 9.
        img_fmt: ``".jpg"`` or ``".png"``.

    Raises:
        ValueError: another format.
    """
    form = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}.get(img_fmt.lower())
    if form is None:
        raise ValueError(f"expected `.jpg` or `.png` as img_fmt, got {img_fmt!r}")
    options = {"quality": quality} if form == "JPEG" else {"compress_level": min(quality, 9)}
    file = io.BytesIO()
    pixels = np.asarray(img, np.uint8)
    decoders.pillow().fromarray(pixels if pixels.ndim == 2 else pixels[:, :, ::-1]).save(file, form, **options)
    return pack(header, file.getvalue())
