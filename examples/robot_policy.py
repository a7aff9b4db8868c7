"""A policy that imitates an expert: two pictures and states in, the next eight actions out, from a robot's dataset.

    python examples/robot_policy.py

The dataset is made, in LeRobot's layout: a robot in a plane reaches the disc that the task names. Windows never leave
their episode, and where an episode ends, the mask of the padded actions keeps them out of the loss. The policy then
moves the robot in episodes that nobody has recorded.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from feedline_demo import robots
from feedline_demo.robots import CAMERA, SIDE, STEP, TASKS, Plane
from torch import Tensor, nn

import feedline as fl
from feedline import images

HORIZON = 8  # actions that are predicted at once
PAST = (-1, 0)  # frames that the policy sees
NEAR = 2 * STEP


class Policy(nn.Module):
    """Pictures (n, 2, SIDE, SIDE, 3), states (n, 2, 2) and tasks (n,) in, actions (n, HORIZON, 2) out."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 8, 1),
        )  # fmt: skip
        self.act = nn.Sequential(
            nn.Linear(2 * 8 * 2 + 4 + len(TASKS), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, HORIZON * 2),
        )  # fmt: skip

    def forward(self, pictures: Tensor, states: Tensor, tasks: Tensor) -> Tensor:
        count = len(states)
        pixels = pictures.flatten(0, 1).movedim(-1, -3).float() / 255
        # Where in the picture is what each channel looks for? The mean place, weighted by a softmax over all places.
        weights = self.look(pixels).flatten(2).softmax(-1).unflatten(-1, (SIDE // 2, SIDE // 2))
        axis = torch.linspace(-1, 1, SIDE // 2)
        places = torch.stack([weights.sum(-2) @ axis, weights.sum(-1) @ axis], dim=-1).reshape(count, -1)
        named = nn.functional.one_hot(tasks, len(TASKS)).float()
        actions: Tensor = self.act(torch.cat([places, states.flatten(1), named], dim=1))
        return actions.unflatten(1, (HORIZON, 2)) * STEP


def open_windows(folder: Path) -> fl.TimeWindows:
    """Frames with the pictures and states before them and the actions after them, each within its episode."""
    corpus = fl.open_corpus(folder)
    assert isinstance(corpus, fl.LeRobotDeserializer)
    offsets = {CAMERA: PAST, "observation.state": PAST, "action": range(HORIZON)}
    return fl.TimeWindows(corpus, offsets, within=corpus.episode_lengths)


def train(folder: Path, sweeps: int) -> Policy:
    """Imitate the actions of the dataset."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.003)
    decode = images.Decode(CAMERA, images.CenterCrop(SIDE))
    loader = fl.DataLoader(open_windows(folder), batch_size=32, shuffle=True, seed=1, transforms=[decode])
    for sweep in range(sweeps):
        losses = []
        for batch in loader:
            predicted = policy(batch[CAMERA], batch["observation.state"], batch["task_index"])
            errors = ((predicted - batch["action"]) / STEP).abs().mean(-1)
            loss = errors[batch["action_present"]].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"sweep {sweep}: error of an action {np.mean(losses):.3f} of a step", flush=True)
    return policy


def reached(policy: Policy, seed: int, episodes: int) -> float:
    """Return the share of new episodes in which the policy reaches the disc, with half of each plan carried out."""
    good = 0
    for number in range(episodes):
        plane = Plane(seed, number)
        past = [(plane.picture(), plane.position)] * 2
        for _ in range(10):
            pictures, states = (torch.from_numpy(np.stack(column)) for column in zip(*past[-2:], strict=True))
            with torch.no_grad():
                plan = policy(pictures[None], states[None].float(), torch.tensor([plane.task]))[0].numpy()
            for action in plan[: HORIZON // 2]:
                plane.move(action)
                past.append((plane.picture(), plane.position))
        good += plane.distance < NEAR
    return good / episodes


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of new episodes in which the policy reaches the disc."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400, help="episodes to imitate")
    parser.add_argument("--sweeps", type=int, default=8, help="passes over them")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        robots.write_episodes(Path(name, "robot"), options.episodes)
        policy = train(Path(name, "robot"), options.sweeps)
    share = reached(policy, seed=1, episodes=100)
    print(f"{share:.0%} of 100 new episodes end at the disc")
    return share


if __name__ == "__main__":
    main()
