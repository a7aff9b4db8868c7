"""Data sets of the Hugging Face hub: one commit, one listing, and a token."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import feedline as fl
from tests.feed.remote.conftest import delivered
from tests.servers.hub import Hub

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

FIRST, SECOND = "1" * 40, "2" * 40
ROWS = {"i": fl.Stream((), "int64")}


def lines(first):
    return "".join(json.dumps({"i": first + k}) + "\n" for k in range(10)).encode()


@pytest.fixture
def hub():
    with Hub("me/numbers") as server:
        for commit, first in ((FIRST, 0), (SECOND, 100)):
            files = {f"train/{k}.jsonl": lines(first + 10 * k) for k in range(2)}
            server.commits[commit] = {"README.md": b"about", "deep/a/x.jsonl": lines(first + 50), **files}
        server.branches = {"main": FIRST, "refs/convert/parquet": SECOND}
        yield server


@pytest.fixture
def opened(hub, tmp_path):
    corpora = []

    def open_it(what, **options):
        remote = fl.Remote(tmp_path / "cache", storage_options={"endpoint": hub.url, **options}, deadline_s=10)
        corpora.append(fl.open_corpus(f"hf://datasets/me/numbers{what}", streams=ROWS, remote=remote))
        return corpora[-1]

    yield open_it
    for corpus in corpora:
        corpus.close()


def read(corpus):
    return [i for _, minibatch in delivered(corpus, max_sweeps=1, shuffle=False) for (i,) in minibatch["i"]]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("/train", range(20)),
        ("/train/*.jsonl", range(20)),
        ("/train/{0,1}.jsonl", range(20)),
        ("/train/1.jsonl", range(10, 20)),
        ("/deep/**", range(50, 60)),
        (f"@{SECOND}/train", range(100, 120)),
        ("@refs/convert/parquet/train/*.jsonl", range(100, 120)),
        ("@refs%2Fconvert%2Fparquet/train/0.jsonl", range(100, 110)),
    ],
)
def test_an_address_is_read_at_its_commit(opened, what, expected):
    corpus = opened(what)
    assert read(corpus) == [*expected]
    assert (FIRST if expected[0] < 100 else SECOND) in corpus.name


def test_a_commit_stays_as_it_is_while_its_branch_goes_on(hub, opened):
    before = opened("/train")
    state = fl.MinibatchSource(before, seed=1).state_dict()
    hub.branches["main"] = SECOND
    assert read(before) == [*range(20)]
    assert read(pickle.loads(pickle.dumps(before))) == [*range(20)]
    after = opened("/train")
    assert read(after) == [*range(100, 120)]
    assert after.digest() != before.digest()
    with pytest.raises(fl.StateError):
        fl.MinibatchSource(after, seed=1).load_state_dict(state)
    fl.MinibatchSource(opened(f"@{FIRST}/train"), seed=1).load_state_dict(state)
    assert {path.partition("/")[0] for kind, path in hub.log if kind != "commit"} == {FIRST, SECOND}


def test_a_list_is_kept_for_the_next_opening(hub, opened):
    opened("/train")
    assert ("list", f"{FIRST}/train") in hub.log
    hub.log.clear()
    assert read(opened("/train")) == [*range(20)]
    assert {kind for kind, _ in hub.log} == {"commit"}


def test_another_process_asks_for_bytes_alone(hub, opened, tmp_path):
    corpus = opened("/train")
    copy = pickle.dumps(corpus)
    corpus.close()
    shutil.rmtree(tmp_path / "cache")
    hub.log.clear()
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read(0)['i'].rows.tolist())"
    done = subprocess.run([sys.executable, "-c", program], input=copy, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == [*range(10)]
    assert {kind for kind, _ in hub.log} == {"read"}


def test_processes_that_open_at_once_list_once(hub, opened):
    with ThreadPoolExecutor(4) as pool:  # locks of files hold between threads as between processes
        corpora = [*pool.map(opened, ["/train"] * 4)]
    assert [read(corpus) for corpus in corpora] == [[*range(20)]] * 4
    # The folder above shows that it is a folder.
    assert [path for kind, path in hub.log if kind == "list"] == [f"{FIRST}/", f"{FIRST}/train"]


def test_a_token_is_used_and_not_shown(hub, opened, monkeypatch):
    hub.token = "hf_secret7"
    with pytest.raises(fl.DataError, match="HF_TOKEN") as caught:
        opened("/train", token=False)
    assert len(str(caught.value)) < 1500
    assert read(opened("/train", token="hf_secret7")) == [*range(20)]
    with pytest.raises(fl.DataError, match="HF_TOKEN") as caught:
        opened("/train", token="hf_secret8")
    assert "hf_secret" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret7")
    assert read(opened("/train/0.jsonl")) == [*range(10)]


@pytest.mark.parametrize("what", ["@none/train", f"@{'3' * 40}/train", "/none", "/train/none.jsonl", "/train/*.csv"])
def test_what_is_not_there_is_an_error_at_once(opened, what):
    with pytest.raises(fl.DataError, match="me/numbers") as caught:
        opened(what)
    assert "none that this token" in str(caught.value) if what[0] == "@" else FIRST in str(caught.value)


def test_small_reads_do_not_make_later_ones_small(hub, tmp_path):
    """Each piece of a range is a request, and the next one is made once it has arrived."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": np.arange(400_000)}), buffer, compression="none", use_dictionary=False)
    hub.commits[FIRST] |= {f"rows/{k}.parquet": buffer.getvalue() for k in range(4)}
    remote = fl.Remote(tmp_path / "cache", storage_options={"endpoint": hub.url}, deadline_s=10)
    with contextlib.closing(fl.open_corpus("hf://datasets/me/numbers/rows", remote=remote)) as corpus:
        assert sum(len(ids) for ids, _ in delivered(corpus, 8192, max_sweeps=1, shuffle=False)) == 1_600_000
    assert len([kind for kind, _ in hub.log if kind == "read"]) <= 14
