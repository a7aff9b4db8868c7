"""The demo's proof: one self-contained HTML page."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from feedline._version import __version__
from feedline.cli.console import show_bytes
from feedline.runs import page
from feedline.runs.chart_rows import join_columns, thin
from feedline.runs.charts import Chart, spans_decades
from feedline.runs.drawing import figure

from .run import Outcome


def write_proof(outcome: Outcome, out: Path) -> Path:
    """Write ``proof.html`` into ``out``; returns its path."""
    proof = outcome.proof
    identical, agrees = ("yes" if holds else "no" for holds in (outcome.identical, outcome.agrees))
    streams = [
        ("interrupted", proof["fingerprint"], proof["digest"], str(proof["sequences"])),
        (
            "uninterrupted",
            proof["fingerprint_uninterrupted"],
            proof["digest_uninterrupted"],
            str(proof["sequences_uninterrupted"]),
        ),
    ]
    heads = ("", "order fingerprint", "hash of delivered bytes", "sequences")
    body = f"""<h1>Killed, resumed, and the same</h1>
<p>An LSTM learned to count the syllables of {outcome.corpus["train_words"]} words of the CMU Pronouncing Dictionary.
Its process was ended with <code>kill -9</code> halfway and resumed from the last checkpoint with another minibatch size
and {outcome.settings["workers"]} ranks. The minibatches of both runs, joined at the checkpoint, are compared with those
of one pass over the data that was never interrupted.</p>
<p><strong>resumed stream identical: {identical}</strong></p>
<p>The ranks summed their gradients in a key-value store. A single process that was never interrupted ended with the
<strong>same parameters: {agrees}</strong>.</p>
{page.table("What the two runs delivered", heads, streams, whole=True)}
<h2>Loss</h2>
{figure(_loss(outcome), [outcome.resumed["checkpoint_samples"]])}
<h2>Figures</h2>
{page.facts(_figures(outcome))}
<h2>Settings and machine</h2>
{page.facts([*((name, str(value)) for name, value in outcome.settings.items()), *_machine()])}"""
    path = out / "proof.html"
    path.write_text(page.document("feedline demo", body), encoding="utf-8")
    return path


def _loss(outcome: Outcome) -> Chart:
    """Loss over samples: before the kill, and from the checkpoint on after it."""
    columns = {
        "one process, killed": outcome.losses["killed"],
        f"resumed, {outcome.settings['workers']} processes": outcome.losses["resumed"],
    }
    table = join_columns("letters since the start", columns)
    return Chart(
        key="loss",
        title="Mean loss of a minibatch",
        description="The vertical line marks the checkpoint from which the run resumed.",
        unit="loss",
        table=thin(table),
        logarithmic=spans_decades(table),
    )


def _figures(outcome: Outcome) -> list[tuple[str, str]]:
    killed, resumed, large, agreement = outcome.killed, outcome.resumed, outcome.large, outcome.agreement
    rows = [
        ("accuracy on held-out words", f"{resumed['accuracy']:.1%} of {outcome.corpus['held_out_words']}"),
        ("training text", f"{show_bytes(outcome.corpus['bytes'])} in {outcome.corpus['chunks']} chunks"),
        ("minibatches before the kill", str(killed["steps"])),
        ("trained again after the checkpoint", f"{killed['samples'] - resumed['checkpoint_samples']} letters"),
        ("minibatches after resuming", str(resumed["steps"])),
        ("parameters of ranks equal, bit for bit", "yes" if agreement["workers_equal"] else "no"),
        ("furthest from one rank's", f"{agreement['difference']:.1e}, tolerance {agreement['tolerance']:g}"),
        ("words a second", f"{killed['words_per_second']:.0f}, then {resumed['words_per_second']:.0f}"),
        ("time spent waiting for data", f"{killed['data_share']:.1%}, then {resumed['data_share']:.1%}"),
        ("held by the feed at most", f"{show_bytes(killed['peak_bytes'])}, then {show_bytes(resumed['peak_bytes'])}"),
    ]
    if large is not None:
        rows += [
            ("large file", f"{show_bytes(large['stored_bytes'])}, {large['sequences']} sequences"),
            ("fed of it", f"{show_bytes(large['fed_bytes'])} in {large['seconds']:.0f} s"),
            ("from the disk", from_the_disk(large)),
            ("growth of private memory", show_bytes(large["growth_bytes"])),
            ("file-backed memory", show_bytes(large["file_backed_bytes"])),
        ]
    return [*rows, ("whole demo", f"{outcome.seconds:.0f} s")]


def from_the_disk(large: dict[str, Any]) -> str:
    """Say how fast the large file was fed, and which share of the disk's speed that is."""
    share = large["resident_before"]
    before = f"{'an unknown part' if share is None else f'{share:.0%}'} of it was in the page cache before"
    speed = f"{show_bytes(large['fed_bytes'] / large['seconds'])}/s"
    if large["disk_bytes_per_second"] is None:
        return f"{speed}; {before}; the file system allows no reads past the page cache, so its own speed is not known"
    return (
        f"{speed}, {large['share_of_disk']:.0%} of the {show_bytes(large['disk_bytes_per_second'])}/s that bare reads "
        f"get; {before}"
    )


def _machine() -> list[tuple[str, str]]:
    return [
        ("feedline", __version__),
        ("Python, NumPy", f"{platform.python_version()}, {np.__version__}"),
        ("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"),
    ]
