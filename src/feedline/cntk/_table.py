"""One entry of the table of CNTK's names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Names:
    """Names of one module; members of classes as ``Class.member``.

    Attributes:
        provided: as in CNTK; names, parted by blanks.
        mended: as in CNTK but for a defect, which the sentence names.
        approximated: with a difference, which the sentence names.
        absent: what to use instead.
        added: of ours, not of CNTK.
    """

    provided: str = ""
    mended: dict[str, str] = field(default_factory=dict)
    approximated: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)

    def tops(self) -> Names:
        """Without members of classes."""
        plain = " ".join(name for name in self.provided.split() if "." not in name)
        fields = (self.mended, self.approximated, self.absent, self.added)
        return Names(plain, *({k: v for k, v in f.items() if "." not in k} for f in fields))
