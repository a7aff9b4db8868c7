"""Faces in InsightFace's files, without MXNet: a small network learns who is who.

    python examples/faces.py

The faces are made, and written as `face2rec2` writes them: `train.rec`, `train.idx` and `property`, where record 0 and
the records after the pictures are ranges of numbers. For files of your own, pass the folder that has them:

    python examples/faces.py --data ms1m-retinaface-t1
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, linear, normalize

import feedline as fl
from feedline import images
from feedline.mxnet import recordio

SIDE = 112
NORMALIZE = images.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), layout="CHW")
TRAINING = images.Decode("image", images.CenterCrop(SIDE), images.Flip(0.5), NORMALIZE)
TESTING = images.Decode("image", images.CenterCrop(SIDE), NORMALIZE)


def draw_face(person: int, picture: int) -> NDArray[np.uint8]:
    """A face in BGR. Its colours and proportions are the person's, light and position the picture's."""
    own, new = np.random.default_rng([person]), np.random.default_rng([person, picture + 1])
    skin, hair, eyes = own.uniform(60, 230, (3, 3))
    width, height, apart, mouth = own.uniform((28, 36, 9, 8), (42, 48, 18, 22))
    y, x = np.mgrid[:SIDE, :SIDE] - 56 - new.uniform(-6, 6, (2, 1, 1))
    face = np.full((SIDE, SIDE, 3), new.uniform(40, 215, 3))
    face[(x / width) ** 2 + (y / height) ** 2 < 1.2] = hair
    face[(x / width) ** 2 + ((y - 8) / height) ** 2 < 1] = skin
    face[(np.abs(x) - apart) ** 2 + (y + 6) ** 2 < 22] = eyes
    face[(np.abs(x) < mouth) & (np.abs(y - 24) < 3)] = (60, 60, 170)
    light = new.uniform(0.7, 1.2) + new.uniform(-0.2, 0.2) * x[..., None] / 56
    return np.clip(face * light + new.normal(0, 6, face.shape), 0, 255).astype(np.uint8)


def write_faces(folder: Path, persons: int, pictures: int, first: int = 0) -> None:
    """Write so many pictures of each person, from picture number ``first`` on, in InsightFace's layout."""
    folder.mkdir(parents=True)
    (folder / "property").write_text(f"{persons},{SIDE},{SIDE}\n")
    file = recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "w")
    end = 1 + persons * pictures
    file.write_idx(0, recordio.pack(recordio.IRHeader(0, [end, end + persons], 0, 0), b""))
    for i in range(persons * pictures):
        header = recordio.IRHeader(0, float(i // pictures), i + 1, 0)
        file.write_idx(i + 1, recordio.pack_img(header, draw_face(i // pictures, first + i % pictures)))
    for person in range(persons):
        numbers = [1 + person * pictures, 1 + (person + 1) * pictures]
        file.write_idx(end + person, recordio.pack(recordio.IRHeader(0, numbers, end + person, 0), b""))
    file.close()


class FaceNet(torch.nn.Module):
    """Cosines (pictures, persons) of the embeddings of pictures (pictures, 3, SIDE, SIDE) to those of persons."""

    def __init__(self, persons: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = [torch.nn.AvgPool2d(2)]
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), torch.nn.BatchNorm2d(outputs)]
            layers += [torch.nn.PReLU(outputs)]
        self.embed = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 7 * 7, 64))
        self.persons = torch.nn.Parameter(torch.randn(persons, 64))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return linear(normalize(self.embed(pictures)), normalize(self.persons))


def margin_loss(cosines: torch.Tensor, labels: torch.Tensor, scale: float = 16, margin: float = 0.2) -> torch.Tensor:
    """Softmax of scaled cosines, of which the right one has to be larger by a margin."""
    return cross_entropy(scale * (cosines - margin * torch.nn.functional.one_hot(labels, cosines.shape[1])), labels)


def train(folder: Path, persons: int, epochs: int, batch_size: int = 32) -> FaceNet:
    """Train on the faces in a folder."""
    model = FaceNet(persons)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = fl.DataLoader(
        folder / "train.rec", batch_size=batch_size, shuffle=True, seed=1, drop_last=True, transforms=[TRAINING]
    )
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            loss = margin_loss(model(batch["image"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}")
    return model


def wrong_share(model: FaceNet, folder: Path) -> float:
    """The share of pictures in a folder that are taken for another person."""
    model.eval()
    wrong = count = 0
    with torch.no_grad():
        for batch in fl.DataLoader(folder / "train.rec", batch_size=64, transforms=[TESTING]):
            wrong += int((model(batch["image"]).argmax(1) != batch["label"]).sum())
            count += len(batch["label"])
    return wrong / count


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; return the share of wrong answers for other pictures of the same persons, or with --data, of the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.rec and property")
    parser.add_argument("--persons", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=40, help="pictures of each person")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        data, other = options.data or Path(name, "faces"), options.data or Path(name, "others")
        if options.data is None:
            write_faces(data, options.persons, options.pictures)
            write_faces(other, options.persons, 5, first=options.pictures)
        persons = int((data / "property").read_text().split(",")[0])
        print(fl.open_corpus(data / "train.rec"))
        wrong = wrong_share(train(data, persons, options.epochs), other)
    print(f"{wrong:.1%} of the pictures are taken for another person")
    return wrong


if __name__ == "__main__":
    main()
