"""CNTK's names, with your own data and several ranks: an LSTM learns a class for each sentence.

    python examples/cntk_own_source.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/cntk_own_source.py
    ... examples/cntk_own_source.py --learner block

All ranks end with the same parameters, bit for bit. A script with `import cntk as C` runs in the same way, each rank
under `feedline run --as cntk SCRIPT`. A source for several ranks has to do as `Sentences` does, which scripts of that
time often failed to: all ranks walk through all sentences, so that they agree where a minibatch ends, and the position
advances for every sentence, whichever rank takes it.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import feedline.cntk as C

WORDS, CLASSES = 1000, 5
SENTENCES = [([560, 0, 0], 0), ([560, 0, 0, 424], 1), ([160, 5, 6], 2), ([460, 3, 3, 425], 3)]


class Sentences(C.io.UserMinibatchSource):
    """Words and a class, repeated without end; `taken` counts the sentences that this rank got."""

    def __init__(self) -> None:
        self.words = C.io.StreamInformation("words", 0, "sparse", np.float32, (WORDS,))
        self.kind = C.io.StreamInformation("kind", 1, "dense", np.float32, (CLASSES,))
        self.next = self.taken = 0
        super().__init__()

    def stream_infos(self) -> list[Any]:
        return [self.words, self.kind]

    def next_minibatch(self, num_samples: int, number_of_workers: int, worker_rank: int, device: Any = None) -> Any:
        chosen, samples, sweep_end = [], 0, False
        while not sweep_end:
            length = len(SENTENCES[self.next][0])
            if chosen and samples + length > num_samples:
                break
            chosen.append(self.next)
            samples, self.next = samples + length, (self.next + 1) % len(SENTENCES)
            sweep_end = self.next == 0
        mine = chosen[worker_rank::number_of_workers]
        self.taken += len(mine)
        if not mine:
            return {}  # this rank learns from the others' shares
        words = C.Value.one_hot([SENTENCES[i][0] for i in mine], WORDS, device=device)
        kinds = np.eye(CLASSES, dtype=np.float32)[[SENTENCES[i][1] for i in mine]]
        own = sum(len(SENTENCES[i][0]) for i in mine)
        return {
            self.words: C.io.MinibatchData(words, len(mine), own, sweep_end),
            self.kind: C.io.MinibatchData(C.Value(kinds[:, None], device=device), len(mine), len(mine), sweep_end),
        }

    def get_checkpoint_state(self) -> dict[str, int]:
        return {"next": self.next}

    def restore_from_checkpoint(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print this rank's result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=400, help="to learn from, over all ranks")
    parser.add_argument("--learner", choices=["parallel", "block"], default="parallel")
    options = parser.parse_args(arguments)

    C.cntk_py.set_fixed_random_seed(1)
    source = Sentences()
    words, kind = C.sequence.input_variable(WORDS), C.input_variable(CLASSES)
    last = C.sequence.last(C.layers.Recurrence(C.layers.LSTM(20))(words))
    z = C.layers.Dense(CLASSES)(last)
    learner = C.sgd(z.parameters, C.learning_parameter_schedule_per_sample(0.5))
    if options.learner == "block":
        learner = C.distributed.block_momentum_distributed_learner(learner, block_size=20)
    else:
        learner = C.distributed.data_parallel_distributed_learner(learner)
    communicator = C.distributed.Communicator
    trainer = C.Trainer(
        z,
        (C.cross_entropy_with_softmax(z, kind), C.classification_error(z, kind)),
        [learner],
        [C.logging.ProgressPrinter(tag="training")] if communicator.rank() == 0 else [],
    )
    streams = {words: source.words, kind: source.kind}
    C.training_session(trainer, source, 7, streams, max_samples=options.sentences, progress_frequency=100).train()

    all_words = C.Value.one_hot([sentence for sentence, _ in SENTENCES], WORDS)
    scores = z.eval({words: all_words})
    right = sum(int(np.argmax(row)) == kind for row, (_, kind) in zip(scores, SENTENCES, strict=True))
    bits = hashlib.sha256(b"".join(p.value.tobytes() for p in z.parameters)).hexdigest()[:12]
    print(
        f"rank {communicator.rank()} of {communicator.num_workers()}: {right} of {len(SENTENCES)} right, "
        f"parameters {bits}, learned from {source.taken} sentences of its own\n",
        end="",
    )
    communicator.finalize()


if __name__ == "__main__":
    main()
