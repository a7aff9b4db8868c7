"""Metrics equal the record of the process, under documented names, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest

import feedline as fl
from feedline.concurrency.stages import FEEDS, FeedStage
from feedline.errors import install_line
from feedline.probes import Recorder
from feedline.probes.metric_names import ATTRIBUTES, METRICS
from tests.docs.pages import ROOT
from tests.forked import Forked
from tests.inside import write_metrics_often

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
from prometheus_client.parser import text_string_to_metric_families

from tests.linux import linux_only

ITEMS = list(range(48))
TORCH = "torch.utils.data.DataLoader"


def scrape(port):
    """The text that a port serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def parsed(text):
    """Values by name and labels, without the rank."""
    return {
        (
            sample.name,
            *sorted((label, value) for label, value in sample.labels.items() if label != "rank"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def served(export):
    return parsed(scrape(export.port))


def of_stage(values, figure, feed="DataLoader"):
    """Values of a figure by stage."""
    name = f"feedline_stage_{figure}"
    return {
        dict(labels)["stage"]: v for (n, *labels), v in values.items() if n == name and dict(labels)["feed"] == feed
    }


def run_loader(**options):
    return sum(len(batch) for batch in fl.DataLoader(ITEMS, batch_size=4, **options))


class Figures:
    """Figures of a feed, as a test needs them."""

    starting, starts, rank, ranks, minibatches = 0.0, 0, 0, 1, 0

    def __init__(self, feed="Planted"):
        self.stages, self.feed = {}, feed
        FEEDS.add(self)

    @property
    def facts(self):
        return {"feed": self.feed}

    def work(self, seconds, fullness=None):
        self.stages = {"decode": FeedStage(seconds, fullness=fullness)}


# ---- values ----------------------------------------------------------------------------------------------------


@linux_only("figures of worker processes")
def test_values_equal_the_record(leaves_nothing):
    recorder = Recorder()
    with fl.metrics(port=0) as export:
        source = fl.MinibatchSource(fl.ArrayDeserializer(x=[[1.0]] * 40), max_sweeps=2)
        assert sum(batch.num_sequences for batch in source.minibatches(8)) == 80
        assert run_loader(num_workers=1) == len(ITEMS)
        end = time.process_time() + 0.1  # the system counts processor time in hundredths of a second
        while time.process_time() < end:
            pass
        values, record = served(export), recorder.record()
    recorder.close()
    assert [feed.facts["feed"] for feed in record.feeds] == ["MinibatchSource", "DataLoader"]
    for feed in record.feeds:
        kind = feed.facts["feed"]
        assert of_stage(values, "seconds_total", kind) == {name: stage.seconds for name, stage in feed.stages.items()}
        assert of_stage(values, "waiting_seconds_total", kind) == {n: s.waiting for n, s in feed.stages.items()}
        assert of_stage(values, "units_total", kind) == {name: stage.units for name, stage in feed.stages.items()}
        assert of_stage(values, "bytes_total", kind) == {name: stage.bytes for name, stage in feed.stages.items()}
        assert of_stage(values, "threads", kind) == {name: stage.threads for name, stage in feed.stages.items()}
        full = {name: stage.fullness for name, stage in feed.stages.items() if stage.fullness is not None}
        assert of_stage(values, "fullness_ratio", kind) == full
        assert values["feedline_feed_starts_total", ("feed", kind)] == feed.starts
        assert values["feedline_feed_starting_seconds_total", ("feed", kind)] == feed.starting_seconds
        assert values["feedline_feed_cpu_seconds_total", ("feed", kind)] == feed.computing_seconds
    assert record.feeds[1].stage("hand_over").fullness is not None
    assert values[("feedline_cpu_cores",)] == record.conditions.cores
    assert 0 < values["feedline_cpu_seconds_total", ("mode", "user")] <= record.conditions.cpu_seconds
    assert 0 < values[("feedline_read_calls_total",)] <= record.conditions.read_calls


def test_counters_never_go_down():
    """Gauges do. A feed may find that a part of its time belongs to another stage."""
    with fl.metrics(port=0) as export:
        figures, seen = Figures(), []
        for seconds, fullness in ((5.0, 0.75), (3.0, 0.25), (7.0, 0.5)):
            figures.work(seconds, fullness)
            values = served(export)
            seen += [of_stage(values, name, "Planted")["decode"] for name in ("seconds_total", "fullness_ratio")]
        threads = [threading.Thread(target=sum, args=(range(300_000),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        before = served(export)
        for thread in threads:
            thread.join()
        after = served(export)
    assert seen == [5.0, 0.75, 5.0, 0.25, 7.0, 0.5]
    counters = {labels for labels in before if labels[0].endswith("_total")}
    assert [labels for labels in counters if after[labels] < before[labels]] == []


def test_a_feed_has_its_name_for_ever():
    """A loader of validation may work before the loader of training, which was made first."""
    training, validation = Figures(), Figures()
    recorder = Recorder()
    with fl.metrics(port=0) as export:
        validation.work(1.0)
        first, earlier = served(export), recorder.record()
        training.work(10.0)
        second, later = served(export), recorder.record()
    recorder.close()
    assert of_stage(first, "seconds_total", "Planted") == {"decode": 1.0}
    assert of_stage(second, "seconds_total", "Planted") == {"decode": 1.0}
    assert of_stage(second, "seconds_total", "Planted 2") == {"decode": 10.0}
    assert [feed.stage("decode").seconds for feed in later.since(earlier).feeds] == [0.0, 10.0]


def test_figures_count_from_the_beginning():
    """A feed that has ended its work is not among them."""
    figures, idle = Figures(), Figures("Idle")
    figures.work(4.0)
    idle.work(1.0)
    with fl.metrics(port=0) as export:
        figures.work(6.5)
        values = served(export)
    assert of_stage(values, "seconds_total", "Planted") == {"decode": 2.5}
    assert of_stage(values, "seconds_total", "Idle") == {}


# ---- the port ----------------------------------------------------------------------------------------------------


def test_a_port_in_use(leaves_nothing):
    with fl.metrics(port=0) as export:
        port = export.port
        with pytest.raises(OSError, match=rf"got 127\.0\.0\.1:{port}: Address already in use; pass another") as raised:
            fl.metrics(port=port).open()
        assert raised.value.errno == errno.EADDRINUSE
        assert "feedline_cpu_cores" in scrape(port)
    assert export.port is None
    with fl.metrics(port=port) as again:  # the port is free at once
        assert again.port == port


def test_it_ends_with_an_interrupt(leaves_nothing):
    """Also while a client is slow to send its request."""

    def send_slowly():
        with contextlib.suppress(ConnectionError):
            while True:
                client.sendall(b"G")
                time.sleep(0.005)

    with pytest.raises(KeyboardInterrupt), fl.metrics(port=0) as export:
        client = socket.create_connection(("127.0.0.1", export.port))
        sending = threading.Thread(target=send_slowly)
        sending.start()
        port = export.port
        signal.raise_signal(signal.SIGINT)
    sending.join()
    client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    export.close()  # again


def test_only_this_machine_reaches_it():
    """A server on all addresses is reached by 127.0.0.2, too."""
    for host, outcome in (("127.0.0.1", errno.ECONNREFUSED), ("0.0.0.0", 0)):
        arguments = {} if outcome else {"host": host}
        with fl.metrics(port=0, **arguments) as export, socket.socket() as client:
            assert client.connect_ex(("127.0.0.2", export.port)) == outcome


def test_two_servers(leaves_nothing):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with fl.metrics(port=0) as first:
        with fl.metrics(port=0) as second:
            assert len(list(torch.utils.data.DataLoader(ITEMS, batch_size=4))) == 12
            both = [
                of_stage(served(export), "units_total", "torch.utils.data.DataLoader") for export in (first, second)
            ]
        assert len(list(torch.utils.data.DataLoader(ITEMS, batch_size=8))) == 6
        later = of_stage(served(first), "units_total", f"{TORCH} 2")
    for units in both:
        assert set(units.values()) == {12}
    assert set(later.values()) == {6}
    assert "feedline" not in torch.utils.data.dataloader._BaseDataLoaderIter.__next__.__module__


def test_a_client_that_goes_away_is_not_reported(capfd):
    with fl.metrics(port=0) as export:
        client = socket.create_connection(("127.0.0.1", export.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        client.sendall(b"GET /metr")
        client.close()
        assert "feedline_cpu_cores" in scrape(export.port)
    assert capfd.readouterr().err == ""


def sockets():
    """The sockets that this process has open, by inode."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in links if link.startswith("socket:")}


class Sockets:
    """Items that are the sockets of the process that reads them."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return sockets()


def test_no_child_holds_the_port(leaves_nothing):
    """A worker that outlives its killed parent would. Nor does the end of a forked child end what its parent serves."""
    before = sockets()
    with fl.metrics(port=0) as export:
        (listening,) = sockets() - before
        assert Forked(lambda: listening not in sockets()).status() == 0
        options = {"multiprocessing_context": "fork", "collate_fn": list}
        for batch in fl.DataLoader(Sockets(), batch_size=2, num_workers=1, **options):
            assert all(listening not in of_worker for of_worker in batch)
        assert Forked(lambda: export.close() is None).status() == 0
        assert "feedline_cpu_cores" in scrape(export.port)
    assert sockets() <= before


# ---- the file ----------------------------------------------------------------------------------------------------


def test_the_file_is_replaced(tmp_path, monkeypatch, leaves_nothing):
    write_metrics_often(monkeypatch)
    path = tmp_path / "new" / "metrics.prom"
    with fl.metrics(path=path) as export:
        assert export.path == path
        inode, figures = path.stat().st_ino, Figures()
        figures.work(2.0)
        while not of_stage(parsed(path.read_text()), "seconds_total", "Planted"):
            time.sleep(0.005)
        assert path.stat().st_ino != inode  # by another file
        figures.work(3.0)
    assert of_stage(parsed(path.read_text()), "seconds_total", "Planted") == {"decode": 3.0}
    assert os.listdir(path.parent) == ["metrics.prom"]
    assert path.stat().st_mode & 0o777 == 0o644  # node_exporter runs as another user


def test_ranks_have_their_files_and_ports(tmp_path, monkeypatch):
    with fl.metrics(port=0) as export:
        free = export.port
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with fl.metrics(port=free - 3, path=tmp_path / "metrics.prom") as export:
        assert export.port == free
        assert export.path == tmp_path / "metrics.rank3.prom"
        text = scrape(export.port)
    assert os.listdir(tmp_path) == ["metrics.rank3.prom"]
    for page in (text, (tmp_path / "metrics.rank3.prom").read_text()):
        assert {s.labels["rank"] for family in text_string_to_metric_families(page) for s in family.samples} == {"3"}
    with pytest.raises(ValueError, match="port \\+ rank of at most 65535, got 65535 \\+ 3"):
        fl.metrics(port=65535).open()


def test_a_file_that_cannot_be_written(tmp_path, caplog, leaves_nothing):
    """At the beginning that is an error. Later, training goes on."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        fl.metrics(port=0, path=tmp_path / "file" / "metrics.prom").open()
    path = tmp_path / "folder" / "metrics.prom"
    with caplog.at_level(logging.WARNING, "feedline"), fl.metrics(path=path):
        path.unlink()
        path.parent.rmdir()
        path.parent.touch()
    assert f"metrics are not written to {path}: " in caplog.text


def test_the_folder_of_a_file_comes_back(tmp_path):
    """Something has cleaned up."""
    path = tmp_path / "folder" / "metrics.prom"
    with fl.metrics(path=path):
        path.unlink()
        path.parent.rmdir()
    assert "feedline_" in path.read_text()


# ---- OpenTelemetry ---------------------------------------------------------------------------------------------


@pytest.fixture
def telemetry():
    """A meter, and a function that returns what its provider exports: points by name, and units by name."""
    metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader])

    def collect():
        data = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    yield SimpleNamespace(meter=provider.get_meter("training"), collect=collect, provider=provider)
    provider.shutdown()


def test_instruments(telemetry):
    """They have the names and values of the table, also in a later export of the same meter."""
    for seconds in (2.0, 3.0):
        with fl.metrics(meter=telemetry.meter, port=0) as export:
            figures = Figures()
            figures.work(seconds, 0.5)
            instruments, values = telemetry.collect(), served(export)
        (point,) = instruments["feedline.stage.time"].data.data_points
        assert point.value == seconds
        assert point.attributes == {
            "feedline.rank": 0,
            "feedline.feed.name": "Planted",
            "feedline.stage.name": "decode",
        }
        for metric in METRICS:
            named = {labels for labels in values if labels[0] == metric.name}
            if not named:
                continue
            data = instruments[metric.instrument].data
            assert instruments[metric.instrument].unit == metric.unit
            assert len(data.data_points) == len(named)
            assert getattr(data, "is_monotonic", False) == metric.counts
        del figures
        assert telemetry.collect() == {}


def test_a_worker_observes_nothing(telemetry):
    """The exporter of a provider goes on in a forked child."""
    with fl.metrics(meter=telemetry.meter):
        assert Forked(lambda: telemetry.collect() == {}).status() == 0
        assert telemetry.collect() != {}


# ---- arguments and names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "port, path or meter, got none of them"),
        ({"port": 70_000}, ValueError, "port from 0 to 65535, got 70000"),
        ({"port": "9464"}, ValueError, "port from 0 to 65535, got '9464'"),
        ({"meter": "training"}, TypeError, "meter of OpenTelemetry, got 'training'"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        fl.metrics(**arguments)


def test_open_twice():
    with fl.metrics(port=0) as export, pytest.raises(ValueError, match="closed, got an open one"):
        export.open()


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for arguments in ({"port": 0}, {"path": "metrics.prom"}):
        with pytest.raises(ModuleNotFoundError, match=re.escape(install_line("metrics"))):
            fl.metrics(**arguments)


SUFFIXES = {"s": "_seconds", "By": "_bytes"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_end_in_their_units(metric):
    assert re.fullmatch(r"feedline(_[a-z]+)+", metric.name)
    assert re.fullmatch(r"feedline(\.[a-z]+(_[a-z]+)*)+", metric.instrument)
    assert "total" not in metric.instrument
    assert metric.name.removesuffix("_total").endswith(SUFFIXES.get(metric.unit, ""))
    if metric.unit.startswith("{") and metric.counts:
        assert metric.instrument.endswith("s")


def test_the_page_lists_all_metrics():
    text = (ROOT / "docs" / "how-to" / "metrics.md").read_text("utf-8")
    described = re.findall(r"^\| `(feedline_\w+)` \| ((?:`\w+`(?:, )?)*) \| (.+) \|$", text, re.MULTILINE)
    assert described == [(m.name, ", ".join(f"`{label}`" for label in m.labels), m.text) for m in METRICS]
    instruments = re.findall(r"^\| `(feedline_\w+)` \| (feedline\.\S+) \| `(\S+)` \|$", text, re.MULTILINE)
    assert instruments == [(m.name, m.instrument, m.unit) for m in METRICS]
    attributes = re.findall(r"^\| `([a-z]+)`.* \| ([\w.]+) \|$", text, re.MULTILINE)
    assert dict(attributes) == ATTRIBUTES
