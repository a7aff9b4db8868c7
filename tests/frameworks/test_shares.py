"""Frameworks that make a mesh, or have ranks of their own: which items each rank reads, against a single process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import warnings
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from tests import warm  # noqa: E402
from tests.ranks import run  # noqa: E402

DP_TP = {"dp_shard_size": 2, "tp_size": 2}
HSDP = {"dp_replicate_size": 2, "dp_shard_size": 2}


def loader(**options):
    return fl.DataLoader(torch.arange(32.0)[:, None], shuffle=True, seed=3, **options)


def source(**options):
    return fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(16.0)), seed=3, max_sweeps=1, **options)


def items(batches):
    return [batch[:, 0].int().tolist() for batch in batches]


def alone(batch_size):
    """What a single process reads: batches of a loader, and the first minibatch of a source."""
    return items(loader(batch_size=batch_size)), source().next_minibatch(8).ids.tolist()


def joined(ranks):
    """The global batches, from the shares of each rank."""
    return [sum(shares, []) for shares in zip(*ranks, strict=True)]


def as_worker():
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": os.environ["RANK"], "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}


def accelerated(rank, sizes, modes):
    as_worker()
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import ParallelismConfig

    mock.patch.object(ParallelismConfig, "_validate_accelerator").start()  # it wants GPUs
    config = DataLoaderConfiguration(dispatch_batches="dispatched" in modes)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes), dataloader_config=config)
    answers = []
    for mode in modes:
        own = loader(batch_size=2, partition=None if mode == "prepared" else "auto")
        try:
            answers.append(items(own if mode == "unprepared" else accelerator.prepare(own)))
        except ValueError as error:
            answers.append(str(error))
    return answers, source().next_minibatch(8).ids.tolist()


@pytest.mark.frameworks("accelerate")
@pytest.mark.parametrize(("sizes", "first"), [(DP_TP, [0, 2]), (HSDP, [0, 1, 2, 3])], ids=["dp tp", "hsdp"])
def test_accelerate(sizes, first):
    """A loader may be prepared, or read its own share, and not both. Sources read their share."""
    ranks = run(accelerated, 4, sizes=sizes, modes=["prepared", "unprepared", "both"])
    if len(first) == 2:
        assert (ranks[0], ranks[2]) == (ranks[1], ranks[3])
    whole, ids = alone(2 * len(first))
    assert joined(ranks[r][0][0] for r in first) == whole
    assert joined(ranks[r][0][1] for r in first) == whole
    assert sum((ranks[r][1] for r in first), []) == ids
    for (_, _, refusal), _ in ranks:
        assert f"one of {len(first)} shares, of which most would not be read: leave out partition=" in refusal


@pytest.mark.frameworks("accelerate")
def test_a_share_that_one_process_of_accelerate_would_read_for_all_is_refused():
    (((refusal,), _),) = run(accelerated_alone, 1)
    assert "one of 2 shares, of which most would not be read" in refusal


def accelerated_alone(rank):
    from accelerate.data_loader import prepare_data_loader

    prepared = prepare_data_loader(loader(batch_size=2, partition=(0, 2)), put_on_device=True, dispatch_batches=True)
    try:
        return [[items(prepared)], None]
    except ValueError as error:
        return [[str(error)], None]


def lightened(rank, partition):
    as_worker()
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    importlib.import_module("tests.frameworks.vision")  # before what imports torchvision
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import ModelParallelStrategy

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.fed = torch.nn.Linear(1, 1), []

        def configure_model(self):
            torch.distributed.fsdp.fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

        def train_dataloader(self):
            return loader(batch_size=2, partition=partition)

        def training_step(self, batch, _):
            self.fed += items([batch])
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Line()
    pl.Trainer(
        accelerator="cpu",
        devices=4,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2),
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(module)
    return module.fed, source().next_minibatch(8).ids.tolist()


@pytest.mark.frameworks("pytorch_lightning")
@pytest.mark.parametrize("partition", [None, "auto"])
def test_lightning(partition):
    """Without a partition Lightning divides the loader by a sampler of torch's, in its own order."""
    ranks = run(lightened, 4, partition=partition)
    assert (ranks[0], ranks[2]) == (ranks[1], ranks[3])
    whole, ids = alone(4)
    batches = joined([ranks[0][0], ranks[2][0]])
    assert sorted(sum(batches, [])) == list(range(32))
    if partition is not None:
        assert batches == whole
    assert ranks[0][1] + ranks[2][1] == ids


RAY = """
import json, sys
from pathlib import Path
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def loop(config):
    import ray.train
    import feedline as fl, numpy as np, torch
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(16.0)), seed=3, max_sweeps=1)
    loader = fl.DataLoader(torch.arange(32.0)[:, None], 2, True, seed=3, partition="auto")
    read = [batch[:, 0].int().tolist() for batch in loader], source.next_minibatch(8).ids.tolist()
    Path(config["folder"], str(ray.train.get_context().get_world_rank())).write_text(json.dumps(read))

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
for trainer in (DataParallelTrainer, TorchTrainer):
    folder = Path(sys.argv[1], trainer.__name__)
    folder.mkdir()
    trainer(
        loop,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder)),
    ).fit()
"""


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.frameworks("ray.train")
def test_ray(tmp_path):
    """With a group of torch and without one."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = warm.run(
        ["-c", RAY, str(tmp_path)], env=env | {"RAY_TRAIN_V2_ENABLED": "1"}, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole, ids = alone(4)
    for kind in ("DataParallelTrainer", "TorchTrainer"):
        ranks = [json.loads((tmp_path / kind / str(rank)).read_text()) for rank in range(2)]
        assert joined(batches for batches, _ in ranks) == whole
        assert ranks[0][1] + ranks[1][1] == ids
