"""The demo's files: a plot of the loss (PNG and SVG) and one self-contained HTML page."""

from __future__ import annotations

import html
import io
import os
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np

from feedline._version import __version__
from feedline.cli.console import show_bytes

from .run import Outcome

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d5d9de; --good: #1a7f37; --bad: #c62828 }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #14171a; --line: #3a4047; --good: #4ac26b; --bad: #ff7b72 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
td { font-variant-numeric: tabular-nums }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
svg { width: 100%; height: auto }
.yes { color: var(--good) } .no { color: var(--bad) }
"""


def write_report(outcome: Outcome, out: Path) -> list[Path]:
    """Write ``proof.html``, ``loss.png`` and ``loss.svg`` into ``out``; returns their paths."""
    figure = _plot(outcome)
    figure.savefig(out / "loss.png", dpi=120, facecolor="white")
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", transparent=True)
    (out / "loss.svg").write_text(drawing.getvalue())
    (out / "proof.html").write_text(_page(outcome, drawing.getvalue()), encoding="utf-8")
    return [out / "proof.html", out / "loss.png", out / "loss.svg"]


def _plot(outcome: Outcome) -> Any:
    """Loss over samples: before the kill, and after it from the checkpoint on."""
    from matplotlib.figure import Figure

    # Greys and blues that stand on white and on black.
    grey = "#808890"
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    looks = {
        "killed": ("one process, killed", "#b0752c"),
        "resumed": (f"resumed, {outcome.settings['workers']} processes", "#2f7fd0"),
    }
    for phase, (label, colour) in looks.items():
        samples, losses = np.array(outcome.losses[phase]).T
        axes.plot(samples, losses, color=colour, alpha=0.3, linewidth=0.8)
        width = max(1, len(losses) // 40)
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(samples[len(losses) - len(smooth) :], smooth, color=colour, linewidth=1.6, label=label)
    axes.axvline(outcome.resumed["checkpoint_samples"], color=grey, linewidth=1, linestyle="--", label="checkpoint")
    axes.set(xlabel="letters since the start", ylabel="mean loss of a minibatch", yscale="log")
    for part in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels(which="both")):
        part.set_color(grey)
    axes.tick_params(which="both", color=grey, labelcolor=grey)
    for spine in axes.spines.values():
        spine.set_color(grey)
    axes.legend(frameon=False, labelcolor=grey)
    return figure


def _page(outcome: Outcome, drawing: str) -> str:
    proof = outcome.proof
    verdict, same = ("yes" if found else "no" for found in (outcome.identical, outcome.agrees))
    # Only the picture itself: no XML header, no metadata.
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    streams = [
        ["", "order fingerprint", "hash of delivered bytes", "sequences"],
        ["interrupted", proof["fingerprint"], proof["digest"], proof["sequences"]],
        [
            "uninterrupted",
            proof["fingerprint_uninterrupted"],
            proof["digest_uninterrupted"],
            proof["sequences_uninterrupted"],
        ],
    ]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>feedline demo</title>
<style>{_STYLE}</style>
<h1>Killed, resumed, and the same</h1>
<p>An LSTM learned to count the syllables of {_text(outcome.corpus["train_words"])} words of the CMU Pronouncing
Dictionary. Its process was ended with <code>kill -9</code> halfway and resumed from the last checkpoint with another
minibatch size and {_text(outcome.settings["workers"])} worker processes. What both runs delivered, joined at the
checkpoint, is compared with one pass over the data that was never interrupted.</p>
<p><strong class="{verdict}">resumed stream identical: {verdict}</strong></p>
<p>The workers summed their gradients in a key-value store. A single process that was never interrupted
ended with the <strong class="{same}">same parameters: {same}</strong>.</p>
{_table(streams, header=True)}
{drawing}
<h2>Figures</h2>
{_table(_figures(outcome))}
<h2>Settings and machine</h2>
{_table([*([name, value] for name, value in outcome.settings.items()), *_machine()])}
</html>
"""


def _figures(outcome: Outcome) -> list[list[Any]]:
    killed, resumed, large, agreement = outcome.killed, outcome.resumed, outcome.large, outcome.agreement
    rows = [
        ["accuracy on held-out words", f"{resumed['accuracy']:.1%} of {outcome.corpus['held_out_words']}"],
        ["training text", f"{show_bytes(outcome.corpus['bytes'])} in {outcome.corpus['chunks']} chunks"],
        ["minibatches before the kill", killed["steps"]],
        ["trained again after the checkpoint", f"{killed['samples'] - resumed['checkpoint_samples']} letters"],
        ["minibatches after resuming", resumed["steps"]],
        ["workers' parameters equal, bit for bit", "yes" if agreement["workers_equal"] else "no"],
        ["furthest from one worker's", f"{agreement['difference']:.1e}, tolerance {agreement['tolerance']:g}"],
        ["words a second", f"{killed['words_per_second']:.0f}, then {resumed['words_per_second']:.0f}"],
        ["time spent waiting for data", f"{killed['data_share']:.1%}, then {resumed['data_share']:.1%}"],
        ["held by the feed at most", f"{show_bytes(killed['peak_bytes'])}, then {show_bytes(resumed['peak_bytes'])}"],
    ]
    if large is not None:
        rows += [
            ["large file", f"{show_bytes(large['stored_bytes'])}, {large['sequences']} sequences"],
            ["fed of it", f"{show_bytes(large['fed_bytes'])} in {large['seconds']:.0f} s"],
            ["from the disk", from_the_disk(large)],
            ["growth of private memory", show_bytes(large["growth_bytes"])],
            ["file-backed memory", show_bytes(large["file_backed_bytes"])],
        ]
    return [*rows, ["whole demo", f"{outcome.seconds:.0f} s"]]


def from_the_disk(large: dict[str, Any]) -> str:
    """Say how fast the large file was fed, and which share of the disk's speed that is."""
    before = f"{large['resident_before']:.0%} of it was in the page cache before"
    speed = f"{show_bytes(large['fed_bytes'] / large['seconds'])}/s"
    if large["disk_bytes_per_second"] is None:
        return f"{speed}; {before}; the file system allows no reads past the page cache, so its own speed is not known"
    return (
        f"{speed}, {large['share_of_disk']:.0%} of the {show_bytes(large['disk_bytes_per_second'])}/s that bare reads "
        f"get; {before}"
    )


def _machine() -> list[list[Any]]:
    return [
        ["feedline", __version__],
        ["Python, NumPy", f"{platform.python_version()}, {np.__version__}"],
        ["machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"],
    ]


def _table(rows: list[list[Any]], header: bool = False) -> str:
    lines = []
    for i, row in enumerate(rows):
        first, *rest = (
            f"<code>{_text(cell)}</code>" if header and i and k else _text(cell) for k, cell in enumerate(row)
        )
        tag = "th" if header and i == 0 else "td"
        lines.append(f"<tr><th>{first}</th>{''.join(f'<{tag}>{cell}</{tag}>' for cell in rest)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _text(value: Any) -> str:
    return html.escape(str(value))
