"""The training of each framework. ``fed`` takes a list of batches for each epoch. A batch is (indices, noise)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from tests.frameworks.program import WORLD


class Items(Dataset):
    """Item i is its index and a random number, as an augmentation would draw it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return {"x": torch.tensor([float(index)]), "noise": torch.rand(1)}


class Ragged(Items):
    """Items with ids of differing lengths, as in texts."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "input_ids": [0] * (1 + index * 7 % 13)}


def without_ids(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of the model's inputs only."""
    return {name: torch.stack([item[name] for item in items]) for name in ("x", "noise")}


class Stream(IterableDataset):
    """The same items one after the other."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        part = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(part[0], self.count, part[1]):
            yield {"x": torch.tensor([float(index)]), "noise": torch.rand(1)}


def loader_of(options: dict[str, Any], dataset: Any, **how: Any) -> Any:
    """A loader of the class that is asked for."""
    if options["loader"] == "feedline":
        from feedline import DataLoader
    else:
        from torch.utils.data import DataLoader
    return DataLoader(dataset, batch_size=options["batch"], num_workers=options["workers"], **how)


def told(batch: dict[str, torch.Tensor]) -> list[Any]:
    """What a batch has in it."""
    return [batch["x"].flatten().int().tolist(), batch["noise"].flatten().tolist()]


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """A loss that every sample moves."""
    return ((model(batch["x"] / 64) - batch["noise"]) ** 2).mean()


def parameters(model: Any) -> list[float]:
    """All of them."""
    return [float(value) for p in model.parameters() for value in p.detach().flatten()]


def forget_accelerator() -> None:
    """Let the next program of this process set up accelerate as if it were the first."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerate(options: dict[str, Any], fed: list[Any], facts: dict[str, Any]) -> None:
    """`prepare`, `skip_first_batches` or a stateful loader, `save_state` and `load_state`, `gather_for_metrics`."""
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    from accelerate.utils import set_seed

    forget_accelerator()
    set_seed(options["seed"])
    mode = options["mode"]
    configuration = DataLoaderConfiguration(
        use_seedable_sampler=mode == "seedable",
        use_stateful_dataloader=mode == "stateful",
        dispatch_batches=True if mode == "dispatch" else None,
        even_batches=mode != "uneven",
    )
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dataset = Stream(options["items"]) if mode == "stream" else Items(options["items"])
    how: dict[str, Any] = {} if mode == "stream" else {"shuffle": True}
    if mode == "unprepared":
        how |= {"partition": "auto", "drop_last": True}
    loader = loader_of(options, dataset, **how)
    model, optimizer = accelerator.prepare(model, optimizer)
    if mode != "unprepared":
        loader = accelerator.prepare(loader)
    else:
        accelerator.register_for_checkpointing(loader)
    folder = str(Path(options["folder"], "state"))
    at = {"epoch": 0, "batch": 0}
    if options.get("resume"):
        accelerator.load_state(folder)
        at = torch.load(Path(options["folder"], "at.pt"))
    for epoch in range(at["epoch"], options["epochs"]):
        epoch_loader, done = loader, 0
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        if epoch == at["epoch"] and at["batch"]:
            done = at["batch"]
            if mode not in ("stateful", "unprepared"):
                # The process that dispatches counts the batches of all.
                epoch_loader = skip_first_batches(loader, done * WORLD if mode == "dispatch" else done)
        batches: list[Any] = []
        fed.append(batches)
        for number, batch in enumerate(epoch_loader, done + 1):
            batches.append(told(batch))
            if mode == "uneven":  # ranks have their own steps
                with accelerator.no_sync(model):
                    accelerator.backward(loss_of(model, batch))
            else:
                accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            if options.get("stop") and (epoch, number) == (1, 1) and not options.get("resume"):  # some ranks have fewer
                accelerator.save_state(folder)
                if accelerator.is_main_process:
                    torch.save({"epoch": epoch, "batch": number}, Path(options["folder"], "at.pt"))
                accelerator.wait_for_everyone()
    facts["parameters"] = parameters(model)
    if mode != "stream":
        facts["length"] = len(loader)
    if mode not in ("stream", "uneven"):  # an uneven evaluation cannot be gathered
        evaluated = accelerator.prepare(loader_of(options, Items(options["items"])))
        facts["metrics"] = [int(i) for batch in evaluated for i in accelerator.gather_for_metrics(batch["x"]).flatten()]


def lightning(options: dict[str, Any], fed: list[Any], facts: dict[str, Any]) -> None:
    """`Trainer.fit`, alone and by ddp, with a checkpoint in the middle of an epoch or at its end."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import Callback

    pl.seed_everything(options["seed"], workers=False, verbose=False)
    checkpoint = str(Path(options["folder"], "last.ckpt"))
    mode, _, end = options["mode"].partition("-")
    if mode in ("last", "epoch", "validated"):
        mode, end = "fit", mode

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def train_dataloader(self) -> Any:
            how = {"partition": "auto", "drop_last": True} if mode == "partition" else {}
            return loader_of(options, Items(options["items"]), shuffle=True, **how)

        def val_dataloader(self) -> Any:
            return loader_of(options, Items(options["items"]))

        def training_step(self, batch: Any, index: int) -> Any:
            if not fed or index == 0:  # in the middle of an epoch, its start is not told
                fed.append([])
            fed[-1].append(told(batch))
            return loss_of(self.layer, batch)

        def validation_step(self, batch: Any, index: int) -> None:
            facts.setdefault("metrics", []).extend(batch["x"].flatten().int().tolist())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Keeper(Callback):
        def keep(self, trainer: Any, module: Any, *_: Any) -> None:
            if options.get("stop") == trainer.global_step and not options.get("resume"):
                trainer.save_checkpoint(checkpoint)

    hook = {"epoch": "on_train_epoch_end", "validated": "on_validation_end"}.get(end, "on_train_batch_end")
    setattr(Keeper, hook, Keeper.keep)

    own = {
        "fit": {},
        "partition": {"use_distributed_sampler": False},
        "overfit": {"overfit_batches": 3},
        "limit": {"limit_train_batches": 0.5},
        "reload": {"reload_dataloaders_every_n_epochs": 1},
    }
    trainer = pl.Trainer(
        max_epochs=options["epochs"],
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Keeper()],
        default_root_dir=options["folder"],
        **own[mode],
    )
    module = Module()
    trainer.fit(module, ckpt_path=checkpoint if options.get("resume") else None)
    facts["parameters"] = parameters(module)


def transformers(options: dict[str, Any], fed: list[Any], facts: dict[str, Any]) -> None:
    """`Trainer.train`, with ``resume_from_checkpoint``."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    forget_accelerator()
    set_seed(options["seed"])
    mode = options["mode"]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, noise: Any, input_ids: Any = None) -> Any:
            if self.training:
                fed[-1].append(told({"x": x, "noise": noise}))
            else:
                facts.setdefault("metrics", []).extend(x.flatten().int().tolist())
            return {"loss": loss_of(self.layer, {"x": x, "noise": noise}), "x": x}

    class Keeper(TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            fed.append([])

        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_save = options.get("stop") == state.global_step
            return control

    class Ours(Trainer):
        def get_train_dataloader(self) -> Any:
            if mode == "prepare":
                loader = loader_of(options, self.train_dataset, shuffle=True, collate_fn=self.data_collator)
                return self.accelerator.prepare(loader)
            if mode == "partition":
                how = {"partition": "auto", "drop_last": True, "collate_fn": self.data_collator}
                return loader_of(options, self.train_dataset, shuffle=True, **how)
            return super().get_train_dataloader()

    arguments = TrainingArguments(
        str(Path(options["folder"], "out")),
        per_device_train_batch_size=options["batch"],
        per_device_eval_batch_size=options["batch"],
        num_train_epochs=options["epochs"],
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        train_sampling_strategy="group_by_length" if mode == "lengths" else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=options["seed"],
        dataloader_num_workers=options["workers"],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    model = Model()
    data = Ragged(options["items"]) if mode == "lengths" else Items(options["items"])
    collate = {"data_collator": without_ids} if mode == "lengths" else {}
    trainer = Ours(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[Keeper()], **collate)
    checkpoint = str(Path(options["folder"], "out", f"checkpoint-{options.get('stop')}"))
    trainer.train(resume_from_checkpoint=checkpoint if options.get("resume") else None)
    facts["parameters"] = parameters(model)
    trainer.evaluate()
