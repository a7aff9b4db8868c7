"""CTF texts for property tests: well-formed ones in every dress, and damaged ones."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracles.ctf import Field

FIELDS = [
    Field(b"A", 3),
    Field(b"AB", 1, float64=True),
    Field(b"sparse_one", 40, sparse=True),
    Field(b"S", 2_000_000_000, sparse=True, float64=True),
]

numbers = st.one_of(
    st.integers(0, 9).map(str),
    st.integers(-999, 99999).map(str),
    st.sampled_from(
        ["0 0 0 0 0 0 0 0 0"[:17], "+1", "-2.", "1e5", "1E+2", "1.5E-1", "-0", "16777217", "1e40", "7e-46"]
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-1000, max_value=1000).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.text("0123456789", min_size=1, max_size=40),
    st.tuples(st.text("0123456789", min_size=1, max_size=22), st.text("0123456789", min_size=1, max_size=22)).map(
        ".".join
    ),
    st.tuples(st.integers(-9, 9), st.text("0123456789", min_size=1, max_size=20), st.integers(-60, 60)).map(
        lambda t: f"{t[0]}.{t[1]}e{t[2]}"
    ),
)
odd_numbers = st.sampled_from(
    [
        ".5",
        "5.e3",
        "nan",
        "-inf",
        "NaN",
        "1e",
        "1e+",
        "--1",
        "0x10",
        "1,2",
        "1.2.3",
        "+",
        ".",
        "-.",
        "1-2",
        "na",
        "infx",
    ]
)
blanks = st.sampled_from([" ", " ", " ", "  ", "\t", " \t "])


@st.composite
def samples(draw, field: Field, tidy: bool) -> str:
    name = field.name.decode()
    limit = field.dim if field.dim < 10 else 6
    count = draw(st.integers(0, limit if tidy else limit + 1))
    parts = [f"|{name}"]
    for _ in range(count):
        number = draw(numbers if tidy else st.one_of(numbers, numbers, numbers, odd_numbers))
        number = number.split(" ")[0] if field.sparse or tidy else number
        if field.sparse:
            index = draw(st.integers(0, field.dim - 1 if tidy else field.dim))
            zeros = "0" * draw(st.sampled_from([0, 0, 0, 3, 12]))
            number = f"{zeros}{index}:{number}"
        parts += [draw(blanks), number]
    return "".join(parts) + draw(st.sampled_from(["", " ", "\t"]))


@st.composite
def texts(draw, fields: list[Field] | None = None, tidy: bool = False) -> bytes:
    """A CTF text. Tidy ones are valid in every sequence."""
    fields = FIELDS if fields is None else fields
    with_ids = draw(st.booleans())
    # A tidy sequence has every stream in its first row, and one of them in all rows.
    longest = draw(st.integers(0, len(fields) - 1))
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        key = draw(st.one_of(st.integers(0, 20), st.sampled_from([2**64 - 1, 10**7, 10**8, 123456789])))
        rows = draw(st.integers(1, 4)) if with_ids else 1
        for row in range(rows):
            chosen = [i for i in range(len(fields)) if (tidy and (row == 0 or i == longest)) or draw(st.booleans())]
            if tidy and row == 0:
                chosen = list(range(len(fields)))
            chosen = draw(st.permutations(chosen))
            parts = [draw(samples(fields[i], tidy)) for i in chosen]
            if draw(st.integers(0, 4)) == 0:
                extra = draw(st.sampled_from(["|# note 1 2", "|Unknown 3 4 ", "|#", "|a 1", "|sparse_one_more 1:1 "]))
                parts.insert(draw(st.integers(0, len(parts))), extra)
            prefix = ""
            if with_ids and (row == 0 or draw(st.booleans())):
                prefix = draw(st.sampled_from(["", "", "0", "00"])) + str(key) + draw(st.sampled_from([" ", "\t", ""]))
            lines.append(prefix + "".join(parts) + draw(st.sampled_from(["", "", "", "\r", " "])))
    text = draw(st.sampled_from(["", "", "\n", " \n\t"])) + "\n".join(lines) + draw(st.sampled_from(["\n", "\n", ""]))
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return mark + text.encode()


DAMAGE = [
    b"|",
    b"||",
    b"\n",
    b"\n\n",
    b" ",
    b":",
    b"-",
    b"e",
    b".",
    b"0",
    b"7 ",
    b"\x00",
    b"\xc3\xa9",
    b"\r",
    b"|A",
    b"|#",
]


@st.composite
def damaged(draw, source: st.SearchStrategy[bytes]) -> bytes:
    """A text with some bytes put in, taken out or changed."""
    text = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        if draw(st.booleans()):
            text[at : at + draw(st.integers(0, 3))] = draw(st.sampled_from(DAMAGE))
        else:
            del text[at : at + draw(st.integers(1, 8))]
    return bytes(text)


any_text = st.one_of(
    texts(tidy=True),
    texts(),
    damaged(texts()),
    st.binary(max_size=60),
    st.text("|AB:1 0.\n\t#-e", max_size=80).map(str.encode),
)
