"""Changes of streams between reading and the step, seeded by position.

`transform` has the interface that a source uses, `map` the transform that runs a user's function on one sequence at a
time. A source runs its transforms in turn on each minibatch, once its sequences have been copied.
"""

from feedline.feed.transforms.map import Map
from feedline.feed.transforms.transform import Begun, DrawKeys, Transform, Transformed

__all__ = ["Begun", "DrawKeys", "Map", "Transform", "Transformed"]
