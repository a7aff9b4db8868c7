"""torch's loader and torchdata's are feedline's, for every module that is imported after this one."""

import torch.utils.data
import torchdata.stateful_dataloader

import feedline

torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = feedline.DataLoader
torchdata.stateful_dataloader.StatefulDataLoader = feedline.DataLoader
