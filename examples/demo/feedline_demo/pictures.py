"""Encoded pictures of shapes and words, drawn here: data for examples, pages, tests and benchmarks.

A class is a shape in a colour, such as ``blue-star``. Picture ``number`` of a seed is the same whatever else is made;
its bytes depend on Pillow's encoder besides. Backgrounds are noise with detail in every octave, as photographs have, so
that a decoder finds about as much to do as in them. Cost: 3 ms for a picture of 256 x 256, encoding included.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Plane = NDArray[np.floating[Any]]

_SHAPES = {"disc": (0, 1.0), "square": (4, 1.0), "star": (5, 0.45), "triangle": (3, 1.0)}
_COLOURS = {
    "blue": (38, 92, 214),
    "green": (32, 150, 70),
    "grey": (128, 128, 128),
    "red": (214, 44, 52),
    "yellow": (240, 190, 30),
}
CLASSES = tuple(f"{colour}-{shape}" for colour in _COLOURS for shape in _SHAPES)
"""Names of the classes, in the order of a folder: a picture's label is the place of its class."""

KINDS = ("baseline", "4:2:2", "4:4:4", "progressive", "restarts", "grey", "CMYK", "turned", "PNG")
"""How a picture can be encoded. ``baseline`` is a JPEG as most are: 4:2:0, sequential, three components. ``turned``
has an EXIF orientation of 2 to 8, and is upright once it is applied."""

MIXED = ("baseline",) * 8 + KINDS[1:]
"""Half of the pictures baseline, the others of all kinds."""

QUALITIES = (60, 75, 90, 95)
_ASPECTS = (1.0, 4 / 3, 3 / 4, 3 / 2, 16 / 9, 2 / 3)


class Picture(NamedTuple):
    """An encoded picture.

    Attributes:
        data: file content.
        label: place of its class in `CLASSES`.
        kind: one of `KINDS`.
        name: ``000017.jpg``, or ``.png``.
    """

    data: bytes
    label: int
    kind: str
    name: str


def pictures(
    count: int,
    *,
    seed: int = 0,
    first: int = 0,
    sides: tuple[int, int] = (64, 512),
    size: tuple[int, int] | None = None,
    kinds: Sequence[str] = MIXED,
    qualities: Sequence[int] = QUALITIES,
    detail: float = 0.8,
) -> Iterator[Picture]:
    """Yield pictures ``first`` to ``first + count`` of a seed.

    Args:
        count: number of pictures.
        seed: of everything that is drawn by lot.
        first: number of the first picture.
        sides: shortest and longest longer side, in pixels; both parities occur.
        size: width and height of all pictures, instead of ``sides``.
        kinds: of `KINDS`, drawn evenly; name one several times to have more of it.
        qualities: of JPEG, drawn evenly.
        detail: contrast of each octave of the background, relative to the next coarser one. At quality 90 and 256 x 256
            pixels, 0.8 makes 2 bits a pixel, 0.95 makes 2.6.

    Raises:
        ValueError: a kind that is none.
    """
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"expected kinds of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    for number in range(first, first + count):
        lots = _Lots(seed, number)
        kind, quality = kinds[lots.below(len(kinds))], qualities[lots.below(len(qualities))]
        shape = lots.below(len(_SHAPES))
        # A picture without colours shows a class without one, so that its label can be learned.
        colour = list(_COLOURS).index("grey") if kind == "grey" else lots.below(len(_COLOURS))
        width, height = size or _some_size(lots, *sides)
        label = colour * len(_SHAPES) + shape
        pixels = _draw(lots, label, width, height, detail)
        data = encode(pixels, kind, quality, 2 + lots.below(7))
        yield Picture(data, label, kind, f"{number:06}.{'png' if kind == 'PNG' else 'jpg'}")


def draw(number: int, label: int, width: int, height: int, *, seed: int = 0, detail: float = 0.8) -> Pixels:
    """Draw a picture of a class: (height, width, 3), uint8."""
    return _draw(_Lots(seed, number), label, width, height, detail)


def encode(pixels: Pixels, kind: str = "baseline", quality: int = 90, orientation: int = 6) -> bytes:
    """Encode a picture as one of `KINDS`.

    Args:
        pixels: (height, width, 3), uint8.
        kind: one of `KINDS`.
        quality: of JPEG, 1 to 95.
        orientation: EXIF orientation of ``turned``, 1 to 8.
    """
    from PIL import Image

    file = io.BytesIO()
    picture = Image.fromarray(pixels)
    if kind == "PNG":
        picture.save(file, "PNG", compress_level=1)
        return file.getvalue()
    sampling = kind if kind in ("4:2:2", "4:4:4") else "4:2:0"
    options = {"quality": quality, "subsampling": sampling}
    if kind == "progressive":
        options["progressive"] = True
    elif kind == "restarts":
        options["restart_marker_rows"] = 1
    elif kind == "grey":
        picture, options = picture.convert("L"), {"quality": quality}
    elif kind == "CMYK":
        picture, options = picture.convert("CMYK"), {"quality": quality}
    elif kind == "turned":
        # What turns the picture as it is stored into the upright one, undone.
        undone = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}.get(orientation)
        picture = picture if undone is None else picture.transpose(Image.Transpose(undone))
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif.tobytes()
    picture.save(file, "JPEG", **options)
    return file.getvalue()


# ---- files ---------------------------------------------------------------------------------------------------


def write_folder(folder: str | Path, made: Iterable[Picture]) -> None:
    """Write ``folder/CLASS/NUMBER.jpg``; classes without a picture have no folder."""
    for picture in made:
        path = Path(folder, CLASSES[picture.label], picture.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.data)


def write_tar(folder: str | Path, made: Iterable[Picture], shards: int = 4) -> list[Path]:
    """Write ``folder/train-000.tar`` and so on, pictures dealt out in turn; return the paths.

    The members of a sample are ``NUMBER.jpg`` and ``NUMBER.cls``. A PNG is called ``.jpg``, too, as it happens in real
    sets: a decoder has to look at the bytes.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [Path(folder, f"train-{shard:03}.tar") for shard in range(shards)]
    archives = [tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) for path in paths]  # noqa: SIM115
    try:
        for place, picture in enumerate(made):
            stem = picture.name.partition(".")[0]
            for name, content in ((f"{stem}.jpg", picture.data), (f"{stem}.cls", b"%d" % picture.label)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archives[place % shards].addfile(member, io.BytesIO(content))
    finally:
        for archive in archives:
            archive.close()
    return paths


def rows(made: Iterable[Picture]) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return contents and labels as two columns, for arrays, Arrow or Parquet."""
    kept = list(made)
    return [picture.data for picture in kept], np.array([picture.label for picture in kept], np.int64)


# ---- drawing -------------------------------------------------------------------------------------------------


class _Lots:
    """Random numbers of a picture, of which NumPy promises that they stay the same."""

    def __init__(self, seed: int, number: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, number]))

    def below(self, count: int) -> int:
        return int(self._bits.random_raw()) % count

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def noise(self, height: int, width: int) -> Plane:
        """Numbers of -1 to 1."""
        words = self._bits.random_raw(-(-height * width // 8))
        octets = np.asarray(words, np.dtype("<u8")).view(np.int8)[: height * width]
        return (octets.astype(np.float32) / np.float32(128)).reshape(height, width)


def _some_size(lots: _Lots, least: int, most: int) -> tuple[int, int]:
    longer = least + lots.below(most - least + 1)
    aspect = _ASPECTS[lots.below(len(_ASPECTS))]
    shorter = max(1, int(longer / max(aspect, 1 / aspect)))
    return (longer, shorter) if aspect >= 1 else (shorter, longer)


def _draw(lots: _Lots, label: int, width: int, height: int, detail: float) -> Pixels:
    colour, shape = list(_COLOURS)[label // len(_SHAPES)], list(_SHAPES)[label % len(_SHAPES)]
    paint = np.array(_COLOURS[colour], np.float32)
    canvas = _background(lots, width, height, colour == "grey", detail)

    short = min(width, height)
    radius = short * lots.between(0.3, 0.44)
    x = np.arange(width, dtype=np.float32) - np.float32(width / 2 + lots.between(-0.5, 0.5) * (width - 2 * radius))
    y = np.arange(height, dtype=np.float32) - np.float32(height / 2 + lots.between(-0.3, 0.3) * (height - 2 * radius))
    far = _outside(*_SHAPES[shape], radius, lots.between(0, 2 * math.pi), x[None, :], y[:, None])
    rim = max(1.0, radius / 14)
    for tint, beyond in ((paint * np.float32(0.35), 0.0), (paint, rim)):
        cover = np.clip(np.float32(0.5 - beyond) - far, 0, 1)[:, :, None]
        canvas += (tint - canvas) * cover * np.float32(0.94)  # a bit of the noise shows

    scale = max(1, round(short / 110))
    word = _word(f"{colour} {shape}", scale)
    if word.shape[0] + 4 * scale < height and word.shape[1] + 4 * scale < width:
        top, left = height - word.shape[0] - 2 * scale, 2 * scale + lots.below(width - word.shape[1] - 4 * scale)
        for offset, tone in ((scale, 20), (0, 245)):
            place = np.s_[top + offset : top + offset + len(word), left + offset : left + offset + word.shape[1]]
            canvas[place][word] = tone
    pixels: Pixels = np.clip(canvas + np.float32(0.5), 0, 255).astype(np.uint8)
    return pixels


def _background(lots: _Lots, width: int, height: int, grey: bool, detail: float) -> Plane:
    """Noise in octaves between two colours, (height, width, 3)."""
    octaves = max(1, (max(width, height) - 1).bit_length() - 1)
    noise = lots.noise((height >> octaves) + 2, (width >> octaves) + 2)
    for octave in range(octaves - 1, -1, -1):
        noise = _doubled(noise)[: (height >> octave) + 2, : (width >> octave) + 2]
        noise += lots.noise(*noise.shape) * np.float32(detail ** (octaves - octave))
    contrast = 0.32 / sum(detail ** (2 * octave) for octave in range(octaves + 1)) ** 0.5
    noise = noise[:height, :width, None] * np.float32(contrast) + np.float32(0.5)
    ends = [np.array([lots.between(40, 230) for _ in range(3)], np.float32) for _ in range(2)]
    if grey:
        ends = [np.full(3, 70, np.float32), np.full(3, 205, np.float32)]
    # Some contrast in any case, or there would be little to decode.
    ends[0] -= np.float32(45)
    ends[1] += np.float32(45)
    canvas: Plane = ends[0] + (ends[1] - ends[0]) * noise
    return canvas


def _doubled(coarse: Plane) -> Plane:
    """Values at half the distance, linear in between."""
    rows, columns = coarse.shape
    tall = np.empty((2 * rows - 1, columns), np.float32)
    tall[::2] = coarse
    tall[1::2] = (coarse[:-1] + coarse[1:]) * np.float32(0.5)
    fine = np.empty((2 * rows - 1, 2 * columns - 1), np.float32)
    fine[:, ::2] = tall
    fine[:, 1::2] = (tall[:, :-1] + tall[:, 1:]) * np.float32(0.5)
    return fine


def _outside(corners: int, inner: float, radius: float, turn: float, x: Plane, y: Plane) -> Plane:
    """Distance from a regular polygon's or star's edge, in pixels, negative within.

    Args:
        corners: number of corners; 0: a disc.
        inner: distance of the dents of a star from the centre, relative to the corners; 1: a polygon.
        radius: distance of the corners from the centre.
        turn: angle of the first corner.
        x: places, relative to the centre, one row.
        y: places, one column.
    """
    distance = np.sqrt(x * x + y * y)
    if corners == 0:
        return distance - np.float32(radius)
    # All edges are alike: the plane is folded into one of them, from a corner to the middle between two.
    step = math.pi / corners
    angle = np.abs(np.mod(np.arctan2(y, x) - turn, 2 * step) - step)
    middle = radius * (math.cos(step) if inner == 1.0 else inner)  # where the edge crosses angle 0
    along, up = radius * math.cos(step) - middle, radius * math.sin(step)
    length = math.hypot(along, up)
    apart: Plane = ((distance * np.cos(angle) - middle) * up - distance * np.sin(angle) * along) / length
    return apart


# Five rows of five pixels for each letter, as binary numbers.
_LETTERS = {
    "A": (14, 17, 31, 17, 17), "B": (30, 17, 30, 17, 30), "C": (15, 16, 16, 16, 15), "D": (30, 17, 17, 17, 30),
    "E": (31, 16, 30, 16, 31), "F": (31, 16, 30, 16, 16), "G": (15, 16, 19, 17, 15), "H": (17, 17, 31, 17, 17),
    "I": (14, 4, 4, 4, 14), "J": (1, 1, 1, 17, 14), "K": (17, 18, 28, 18, 17), "L": (16, 16, 16, 16, 31),
    "M": (17, 27, 21, 17, 17), "N": (17, 25, 21, 19, 17), "O": (14, 17, 17, 17, 14), "P": (30, 17, 30, 16, 16),
    "Q": (14, 17, 21, 18, 13), "R": (30, 17, 30, 18, 17), "S": (15, 16, 14, 1, 30), "T": (31, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 14), "V": (17, 17, 17, 10, 4), "W": (17, 17, 21, 27, 17), "X": (17, 10, 4, 10, 17),
    "Y": (17, 10, 4, 4, 4), "Z": (31, 2, 4, 8, 31), " ": (0, 0, 0, 0, 0),
}  # fmt: skip


def _word(text: str, scale: int) -> NDArray[np.bool_]:
    """Return a text as a mask, ``5 * scale`` pixels high."""
    bits = np.array([_LETTERS[letter] for letter in text.upper()])[:, :, None] >> np.arange(5, -1, -1) & 1
    mask = bits.transpose(1, 0, 2).reshape(5, -1)[:, 1:]
    return np.repeat(np.repeat(mask, scale, 0), scale, 1).astype(bool)
