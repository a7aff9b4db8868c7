"""Lightning drops the states of loaders where `configure_optimizers` asks for the number of steps: it is said."""

from __future__ import annotations

import subprocess

import pytest

from tests import warm
from tests.frameworks.run import FRAMEWORKS

pytestmark = pytest.mark.frameworks("pytorch_lightning")

PROGRAM = """
import logging, sys, warnings
import pytorch_lightning as pl, torch
from pytorch_lightning.callbacks import ModelCheckpoint
import feedline
warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Line(pl.LightningModule):
    def __init__(self, asks):
        super().__init__()
        self.layer, self.asks, self.fed = torch.nn.Linear(1, 1), asks, []
    def training_step(self, batch, _):
        self.fed += batch[:, 0].tolist()
        return (self.layer(batch) ** 2).mean()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        if self.asks:
            self.trainer.estimated_stepping_batches
        return optimizer

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(20.0)[:, None])

def fit(data, asks, **options):
    sized = not isinstance(data, Endless)
    loader = feedline.DataLoader(data, batch_size=2, shuffle=sized, seed=3)
    saves = ModelCheckpoint(f"{sys.argv[1]}/{sized}", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, max_steps=20, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, callbacks=saves)
    model = Line(asks)
    trainer.fit(model, loader, **options)
    return model.fed

for data in (torch.arange(20.0)[:, None], Endless()):
    whole = fit(data, True)
    for asks in (True, False):
        try:
            rest = fit(data, asks, ckpt_path=f"{sys.argv[1]}/{not isinstance(data, Endless)}/step=5.ckpt")
            print(asks, rest == whole[10:], len(rest))
        except feedline.StateError as error:
            print(asks, "dropped", "total_steps=" in str(error))
"""


def test_a_state_that_lightning_drops_is_an_error(tmp_path):
    done = warm.run(
        ["-c", PROGRAM, str(tmp_path)], imported=FRAMEWORKS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.stdout.splitlines()[-4:] == [
        "True dropped True",
        "False True 30",
        "True dropped True",
        "False False 28",  # without a length Lightning reads a batch ahead, and a resumed run misses it
    ], done.stdout
