"""Workers of a real Ray, one test for each feature: values, death, loaders, conversion, and which Ray it is.

One private Ray serves all tests of this file, and the last test ends it. The code of the pool above Ray is tested
without it, in `test_intervals` and `test_ray_session`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, WorkerError
from feedline.feed.protocol import ChunkInfo, Deserializer
from feedline.feed.workers import Pool
from feedline.interop import ray_session
from tests.cli import shell
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.ray.data import Drawing
from tests.feed.test_shared_dataset import Annotations
from tests.feed.workers.tasks import Task, alive, eventually, restarts, results
from tests.inside import private_ray
from tests.laws.items import Augmented, Killing, content

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    pytest.mark.timeout(900),  # processes of Ray take minutes to start on a busy machine
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
]


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """These tests never join a Ray that somebody has started here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        yield
        ray_session.leave()


@pytest.fixture(scope="module")
def pool():
    with Pool(Task(), 2, kind="ray") as pool:
        yield pool


@pytest.fixture
def joining() -> dict[str, str]:
    """The environment of a program that joins this file's Ray, and leaves it as it is."""
    ray_session.join()
    cluster = private_ray()
    return {**cluster.settings, "RAY_ADDRESS": cluster.address}


# ---- the pool ----------------------------------------------------------------------------------------


def test_results_of_any_size_come_back(pool):
    units = [("echo", i) for i in range(50)] + [("copied", i, (64, 64 * (1 + i % 9))) for i in range(50)]
    units.append(("copied", 7, (1000, 1000)))
    *got, large = results(pool, units)
    assert got[:50] == list(range(50))
    assert all((array == i).all() and array.flags.writeable for i, array in enumerate(got[50:]))
    assert (large == 7).all()
    assert isinstance(large, np.ndarray)


def test_units_for_one_worker_run_there_in_order(pool):
    before = [pool.result(pool.submit(("count",), worker=1)) for _ in range(2)]
    tickets = [pool.submit(("count",), worker=1) for _ in range(20)]
    assert [pool.result(ticket) for ticket in tickets] == [(1, before[-1][1] + 1 + i) for i in range(20)]


def test_strange_arrays(pool):
    code = (
        "[np.arange(4000.0)[::2], np.asfortranarray(np.ones((70, 80))), np.array(['a' * 2000] * 9), np.zeros((0, 5)), "
        "np.array(['2020'] * 900, 'M8[D]'), np.array([{1: 2}], object), np.broadcast_to(np.float32(3), (90, 90))]"
    )
    here = eval(code)
    for ours, theirs in zip(here, pool.result(pool.submit(("evaluate", code))), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert (ours == theirs).all()


def test_an_exception_of_the_users_code_has_its_place(pool):
    with pytest.raises(KeyError, match=r"Caught KeyError in DataLoader worker process \d \(Ray, pid \d+ on") as caught:
        pool.result(pool.submit(("fail", KeyError, "planted")))
    assert "tasks.py" in str(caught.value)
    assert pool.result(pool.submit(("echo", 1))) == 1


def test_a_unit_that_kills_once_is_run_again(pool, tmp_path):
    """Whether the actor is killed, or the unit ends it. One unit at a time, as units of one interval share the
    blame."""
    for how in ("kill", "SystemExit"):
        tickets = [pool.submit(("echo", i)) for i in range(10)]
        tickets.append(pool.submit(("die", how, str(tmp_path / how), "")))
        tickets += [pool.submit(("copied", i)) for i in range(10)]
        got = [pool.result(ticket) for ticket in tickets]
        assert got[:11] == [*range(10), "alive"]
        assert all((array == i).all() for i, array in enumerate(got[11:]))
    assert restarts(pool) == 2


def test_close_ends_the_actors(pool):
    """The last test that uses this pool."""
    assert eventually(lambda: all(map(alive, pool.pids)))  # also the ones that were started instead of others
    pids = pool.pids
    pool.close()
    pool.close()
    assert eventually(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(("echo", 1))


# ---- loaders -----------------------------------------------------------------------------------------


def test_a_loader_gives_the_items_and_states_of_one_without_workers(tmp_path):
    """Batch by batch, random numbers included, though an item kills its actor. When it is dropped, its actors end."""
    how = {"batch_size": 8, "shuffle": True, "seed": 5}
    here = fl.DataLoader(Augmented(61), **how)
    data = Killing(61, 33, tmp_path / "killed")
    loader = fl.DataLoader(data, num_workers=2, workers="ray", **how)
    for _ in range(2):
        for batches in zip(loader, here, strict=True):
            got, expected = (content([batch]) for batch in batches)
            assert got == expected
            assert json.dumps(loader.state_dict()) == json.dumps(here.state_dict())
    assert data.marker.exists()
    assert sum(worker.restarts for worker in loader.stats().workers) == 1
    while not all(pids := loader.pids):
        time.sleep(0.01)
    del loader
    assert eventually(lambda: not any(map(alive, pids)))


def test_an_iterable_dataset_equals_local_workers():
    """Parts, states and the generators of worker processes, and the items also after a kill."""
    pytest.importorskip("torch")
    how = {"batch_size": 4, "seed": 3, "num_workers": 2}
    with (
        fl.DataLoader(Drawing(37), workers="process", **how) as local,
        fl.DataLoader(Drawing(37), workers="ray", **how) as ray,
    ):
        iterator, other = iter(ray), iter(local)
        for _ in range(3):
            assert content([next(iterator)]) == content([next(other)])
            assert json.dumps(ray.state_dict()) == json.dumps(local.state_dict())
        for pid in filter(None, ray.pids):
            os.kill(pid, signal.SIGKILL)
        # A local worker that dies draws its random numbers again, too.
        assert [batch[0].tolist() for batch in iterator] == [batch[0].tolist() for batch in other]


def test_shared_data_is_read_as_it_is_here():
    """Actors have a copy of the memory, which Ray keeps once for each machine."""
    pytest.importorskip("torch")
    how = {"batch_size": 300, "shuffle": True, "seed": 3}
    here, got = fl.DataLoader(Annotations(1500), **how), []
    expected = [batch.tolist() for _ in range(2) for batch in here]
    with fl.DataLoader(fl.shared(Annotations(1500)), workers="ray", num_workers=2, **how) as loader:
        for _ in range(2):
            got += [batch.tolist() for batch in loader]
    assert got == expected


# ---- conversion --------------------------------------------------------------------------------------


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


class Ragged(Deserializer):
    """40 chunks of 25 sequences, some unreadable. One chunk kills its first reader."""

    schema = Schema({"x": Stream(3), "y": Stream((), "int64")})

    def __init__(self, marker=None, bad=()):
        self.marker, self.bad = marker, frozenset(bad)

    def chunks(self):
        return [ChunkInfo(25, 25, 1000)] * 40

    def read(self, chunk):
        if self.marker is not None and chunk == 21:
            try:
                Path(self.marker).open("x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        numbers = np.arange(25 * chunk, 25 * chunk + 25)
        rows = [np.full((int(n) % 4 if chunk > 9 else 1, 3), n, np.float32) for n in numbers]
        errors = {i: DataError(f"torn {n}") for i, n in enumerate(numbers) if n in self.bad}
        return Chunk(self.schema, {"x": Value.from_sequences(rows), "y": Value.from_dense(numbers)}, errors)

    def digest(self):
        return "00"


SMALL = {"chunk_bytes": 700, "part_bytes": 4000}


def test_a_corpus_is_the_same_store_after_any_kill(tmp_path):
    how = {"on_error": "skip", **SMALL}
    one = fl.convert(Ragged(bad=[3, 500]), tmp_path / "one", **how)
    ray = fl.convert(Ragged(tmp_path / "killed", [3, 500]), tmp_path / "ray", jobs=2, executor="ray", **how)
    assert (tmp_path / "killed").exists()
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")
    assert ray._replace(path="") == one._replace(path="")
    assert ray.skipped == 2
    assert len(list((tmp_path / "ray").glob("part-*"))) > 1


def test_another_executor_goes_on_where_one_was_interrupted(tmp_path):
    fl.convert(Ragged(), tmp_path / "one", **SMALL)

    class Enough(Exception):
        pass

    def stop(done, total):
        if done >= 25_000:
            raise Enough

    seen = []
    with pytest.raises(Enough):
        fl.convert(Ragged(), tmp_path / "ray", jobs=2, executor="ray", progress=stop, **SMALL)
    fl.convert(Ragged(), tmp_path / "ray", jobs=2, progress=lambda *at: seen.append(at[0]), **SMALL)
    assert bytes_of(tmp_path / "ray") == bytes_of(tmp_path / "one")
    assert min(seen) > 10_000  # the complete parts were not read again


def test_a_dataset_is_the_same_store_random_augmentation_included(tmp_path):
    for kind, more in {"one": {}, "ray": {"jobs": 2, "executor": "ray"}}.items():
        fl.convert(Augmented(300), tmp_path / kind, streams=["index", "x"], chunk_bytes=2000, part_bytes=4000, **more)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")


def test_the_command(tmp_path, joining, monkeypatch):
    for name, value in joining.items():
        monkeypatch.setitem(shell.ENV, name, value)
    np.save(tmp_path / "x.npy", np.arange(30.0).reshape(10, 3))
    fl.convert(tmp_path / "x.npy", tmp_path / "one")
    shell.feedline("convert", tmp_path / "x.npy", tmp_path / "ray", "--executor", "ray", "--jobs", 2)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")
    refused = shell.feedline("convert", tmp_path / "x.npy", tmp_path / "b", "--executor", "dask", code=2)
    assert "--executor local or ray" in refused.stderr


# ---- which Ray ---------------------------------------------------------------------------------------

PROGRAM = """
    import json
    import typing

    import feedline as fl
    from feedline.interop import private_ray

    class Sample(typing.NamedTuple):
        x: float

    class Odd(Exception):
        pass

    class Items:
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            if index == 5:
                raise Odd("planted")
            return Sample(float(index))

    if __name__ == "__main__":
        loader = fl.DataLoader(Items(), num_workers=2, workers="ray", collate_fn=lambda items: items[0])
        iterator = iter(loader)
        got = [next(iterator) for _ in range(5)]
        assert all(type(each) is Sample for each in got), got
        try:
            next(iterator)
        except Odd as error:
            assert "planted" in str(error)
            told = False
            for sample in iterator:
                if not told and all(loader.pids):
                    told = True
                    said = {"got": [each.x for each in got], "actors": loader.pids, "own": list(private_ray.addresses)}
                    print(json.dumps(said), flush=True)
"""


def test_a_program_joins_the_cluster_at_ray_address_and_leaves_it_as_it_was(tmp_path, joining):
    """As in a notebook, classes are defined in the program itself. Ctrl-C ends its actors, and nothing else."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([IMPORTED_FROM, str(ROOT)]), **joining},
    ) as program:
        line = program.stdout.readline()
        assert line, program.stderr.read()
        said = json.loads(line)
        assert said["got"] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert said["own"] == []
        assert all(map(alive, said["actors"]))
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate()
    assert program.returncode, errors
    assert "KeyboardInterrupt" in errors
    assert eventually(lambda: not any(map(alive, said["actors"])))
    assert private_ray().alive


def test_a_shutdown_of_ray_is_an_error_and_not_a_wait_and_leaving_ends_it():
    """The last test: it ends this file's Ray."""
    pool = Pool(Task(), 1, kind="ray")
    pool.result(pool.submit(("echo", 1)))
    sys.modules["ray"].shutdown()
    with pytest.raises(WorkerError, match=r"ray\.shutdown"):
        pool.result(pool.submit(("echo", 2)))
    pool.close()
    assert not sys.modules["ray"].is_initialized()  # most calls of Ray would start another one
    with Pool(Task(), 1, kind="ray") as again:
        assert again.result(again.submit(("echo", 3))) == 3
    private = private_ray()
    ray_session.leave()
    assert not private.alive
    assert not private.folder.exists()
