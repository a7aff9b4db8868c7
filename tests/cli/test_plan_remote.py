"""`feedline plan` and `feedline inspect` of addresses: the figures before a run equal the figures of the run."""

from __future__ import annotations

import json

import pytest
import typer.testing

import feedline as fl
from feedline.cli.app import app_for
from feedline.cli.arguments import parse_rate, parse_seconds
from feedline.cli.console import UsageError, use_option_names
from tests.cli.documents import document_in
from tests.servers.object_store import ObjectStore

pytest.importorskip("obstore", reason="obstore is not installed")
from tests.feed.remote.test_fetch_plan import rows  # which needs it


@pytest.fixture(scope="module")
def bucket():
    with ObjectStore() as server:
        for seed in range(3):
            server.put(f"b/train/{seed}.parquet", rows(seed, 20, 150_000))
        server.put("b/rows.jsonl", "\n".join(json.dumps({"y": i, "t": "w" * 40}) for i in range(500)).encode())
        yield server


@pytest.fixture
def feedline(bucket, monkeypatch, tmp_path):
    names = {"ENDPOINT_URL": bucket.url, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def run(*args, code=0):
        done = typer.testing.CliRunner().invoke(app_for(args[0]), [str(one) for one in args], catch_exceptions=False)
        assert done.exit_code == code, done.output
        if "--json" in args:
            document_in(done.stdout, args[0])
        return done.output

    return run


PLAN = ("plan", "s3://b/train/*.parquet", "--batch", 7, "--seed", 3, "--window", "1M", "--cache", "64M")


def test_a_run_fetches_the_announced_bytes_opening_included(bucket, feedline, tmp_path):
    said = json.loads(feedline(*PLAN, "--sweeps", 2, "--json"))["fetching"]
    bucket.reset()
    corpus = fl.open_corpus("s3://b/train/*.parquet", remote=fl.Remote(cache=tmp_path / "run", cache_bytes=64 << 20))
    with fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(bytes=1 << 20), max_sweeps=2) as source:
        source.state_dict()
        counters = bucket.counters()
        opening = said["opening"]
        assert opening["bytes"] == counters.sent_bytes["GET"]
        assert opening["requests"] == counters.requests["GET"]
        assert opening["lookups"] == counters.requests["LIST"] + counters.requests["HEAD"]
        bucket.reset()
        for _ in source.minibatches(7):
            pass
    counters = bucket.counters()
    assert sum(one["bytes"] for one in said["asked"]["sweeps"]) == counters.sent_bytes["GET"]
    assert sum(one["requests"] for one in said["asked"]["sweeps"]) == counters.requests["GET"]
    assert list((tmp_path / "home" / "feedline").glob("plan-*")) == []


def test_shows_which_partition_fetches_less_and_the_waits_of_steps(feedline):
    link = ("--bandwidth", "8MB/s", "--latency", "5ms", "--step", "1ms")
    text = feedline(*PLAN, "--nodes", 4, *link)
    assert "arcs=64 fetches less: by position takes" in text
    assert "of 1 ms wait " in text
    assert "or more hide" not in text
    assert "/s would hide the last" in text or "the last is hidden" in text
    assert "first batch     after " in text
    found = json.loads(feedline(*PLAN, "--nodes", 4, "--arcs", 8, *link, "--json"))["fetching"]
    assert found["asked"]["arcs"] == 8
    assert found["other"]["arcs"] is None
    assert sum(one["bytes"] for one in found["asked"]["cluster"]) < sum(
        one["bytes"] for one in found["other"]["cluster"]
    )
    assert found["other"]["cluster"][0]["bytes"] == 4 * found["other"]["sweeps"][0]["bytes"]
    assert 0 < found["asked"]["waits"][0] < found["other"]["waits"][0] < 1
    assert "hide the fetching" in feedline(*PLAN, "--bandwidth", "800MB/s", "--step", "10s")
    assert "pass --bandwidth and --step" in feedline(*PLAN)


def test_a_place_in_the_order_begins_there(feedline):
    whole = json.loads(feedline(*PLAN, "--sweeps", 1, "--json"))["fetching"]["asked"]["sweeps"][0]["bytes"]
    rest = json.loads(feedline(*PLAN, "--sweeps", 1, "--at", 30, "--json"))["fetching"]["asked"]["sweeps"][0]["bytes"]
    assert 0 < rest < 0.3 * whole


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--cache", "1G"),
        ("--nodes", 2),
        ("--ranks-per-node", 2),
        ("--bandwidth", "1MB/s"),
        ("--latency", "1ms"),
        ("--step", "1s"),
        ("--sweeps", 2),
    ],
)
def test_a_path_takes_no_options_of_addresses(feedline, tmp_path, option, value):
    text = feedline("plan", tmp_path, option, value, code=2)
    assert f"expected an address, such as s3://bucket/train-*.tar, for {option}, got the path" in text


def test_wrong_options(feedline):
    assert "expected --bandwidth with --step 1s, got none" in feedline(*PLAN, "--step", "1s", code=2)
    assert "expected a path for --chunk-size 1M, got an address" in feedline(*PLAN, "--chunk-size", "1M", code=2)
    assert "expected cache_bytes of at least 67108864" in feedline("plan", "s3://b/train", "--cache", "1M", code=1)
    text = feedline(*PLAN, "--nodes", 9, "--arcs", 8, code=1)
    assert "expected at most 8 ranks" in text


def test_rates_and_durations():
    assert parse_rate("200MB/s") == 2e8
    assert parse_rate("10 Gbit/s") == 1.25e9
    assert (parse_seconds("5ms"), parse_seconds("0.25s"), parse_seconds("2")) == (0.005, 0.25, 2.0)
    for text in ("200", "MB/s", "0MB/s", "-1MB/s"):
        with pytest.raises(UsageError, match="expected a rate above 0"):
            parse_rate(text)
    with pytest.raises(UsageError, match="expected a duration"):
        parse_seconds("5 minutes")


def test_inspect_of_an_address(feedline):
    found = json.loads(feedline("inspect", "s3://b/rows.jsonl", "--json"))
    assert (found["format"], found["sequences"], found["cost"], found["streams_guessed"]) == ("jsonl", 500, None, True)
    assert found["preview"][1]["streams"]["y"]["first"] == [[1]]
    assert json.loads(feedline("inspect", "s3://b/train", "--json"))["format"] == "parquet"


def test_other_commands_take_addresses(bucket, feedline, tmp_path):
    assert json.loads(feedline("validate", "s3://b/train", "--json"))["damaged"] == 0
    feedline("convert", "s3://b/train/*.parquet", tmp_path / "store", "--json")
    assert fl.open_corpus(tmp_path / "store").chunks()[0].sequences
    measured = json.loads(feedline("bench", "s3://b/rows.jsonl", "--seconds", "0.1", "--json"))
    assert measured["minibatches"]
    assert "XDG_CACHE_HOME to an empty folder" in feedline("bench", "s3://b/rows.jsonl", "--cold", code=2)


def test_hints_about_the_cache_name_options():
    hint = "raise the cache_bytes of fl.Remote to 90451764, or pass shuffle=fl.Window(...)"
    assert use_option_names(hint) == "raise --cache to 87M, or pass --window, such as --window 256M"


@pytest.mark.parametrize("cold", [False, True])
def test_settings_are_searched_for_an_address(bucket, feedline, tmp_path, monkeypatch, cold):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bucket.reset()
    options = ("--window", "1M", "--seconds", 2, "--json", *(["--cold"] if cold else []))
    result = json.loads(feedline("tune", "s3://b/train/*.parquet", *options))
    present = next(row for row in result["settings"] if row["present"])
    assert present["measured"] > 0
    assert {row["arguments"]["format"] for row in result["settings"]} == {"as it is"}
    assert result["notes"] == []  # the cache has room for all
    data_bytes = 3 * len(rows(0, 20, 150_000))
    assert (bucket.counters().sent_bytes["GET"] > 1.2 * data_bytes) == cold  # every time, from an empty cache
    assert list(tmp_path.glob("feedline-tune-*")) == []
    source = {}
    exec(result["code"], source)
    with source["source"] as fed:
        assert fed.next_minibatch(7).num_samples == 7


def test_a_cache_that_is_too_small_is_noted(bucket, feedline, monkeypatch):
    monkeypatch.setattr("feedline.cli.tune.corpora.DEFAULT_BYTES", 1 << 20)
    (note,) = json.loads(feedline("tune", "s3://b/train/*.parquet", "--seconds", 0.5, "--json"))["notes"]
    assert note.startswith("The cache of objects keeps 1.05 MB of ")
    assert "pass remote=fl.Remote(cache_bytes=" in note
