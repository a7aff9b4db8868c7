"""Changes of streams between reading and the step, seeded by position.

`transform` has the interface that a source uses, `map` the transform that runs a user's function on one sequence at a
time. `standardize` and `vocabulary` have transforms that use statistics of all data. A source runs its transforms in
turn on each minibatch, once its sequences have been copied.
"""

from feedline.feed.transforms.begun_work import BegunWork
from feedline.feed.transforms.map import Map
from feedline.feed.transforms.standardize import Standardize
from feedline.feed.transforms.transform import Begun, DrawKeys, Transform, Transformed
from feedline.feed.transforms.vocabulary import Hash, Vocabulary

__all__ = ["Begun", "BegunWork", "DrawKeys", "Hash", "Map", "Standardize", "Transform", "Transformed", "Vocabulary"]
