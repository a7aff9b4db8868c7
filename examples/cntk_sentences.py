"""A CNTK script with a source of its own, run as it is, by one worker or by several.

    feedline run --as cntk examples/cntk_sentences.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 -m feedline run --as cntk examples/cntk_sentences.py
    ... examples/cntk_sentences.py --learner block

An LSTM tells five kinds of sentences apart; the kind is that of the first word. The source shows what a source for
several workers has to do: every worker goes through all sentences of a minibatch, so that all of them stand at the same
place, and hands out its own ones only. All workers end with the same parameters, bit for bit.
"""

import argparse

import cntk as C  # noqa: N812  # as all its scripts do
import numpy as np
from cntk.io import MinibatchData, StreamInformation, UserMinibatchSource

WORDS, KINDS = 40, 5


class Sentences(UserMinibatchSource):
    """Made-up sentences of 2 to 6 words, in order, again and again."""

    def __init__(self, count=60):
        rng = np.random.RandomState(0)
        self.words = [rng.randint(WORDS, size=rng.randint(2, 7)).tolist() for _ in range(count)]
        self.features = StreamInformation("features", 0, "sparse", np.float32, (WORDS,))
        self.labels = StreamInformation("labels", 1, "dense", np.float32, (KINDS,))
        self.next = self.handed_out = 0
        super().__init__()

    def stream_infos(self):
        return [self.features, self.labels]

    def next_minibatch(self, num_samples, number_of_workers, worker_rank, device=None):
        """At most ``num_samples`` words over all workers; a sentence that alone has more comes alone."""
        mine, samples, sweep_end = [], 0, False
        while True:
            words = self.words[self.next]
            if samples and samples + len(words) > num_samples:
                break
            # The place moves for every sentence, whoever's it is.
            if self.next % number_of_workers == worker_rank:
                mine.append(words)
            samples, self.next = samples + len(words), self.next + 1
            if self.next == len(self.words):
                self.next, sweep_end = 0, True
        self.handed_out += len(mine)
        if not mine:
            return {}
        kinds = np.eye(KINDS, dtype=np.float32)[[words[0] * KINDS // WORDS for words in mine]]
        features = C.Value.one_hot(mine, WORDS, device=device)
        labels = C.Value(kinds[:, None], device=device)
        return {
            self.features: MinibatchData(features, len(mine), sum(map(len, mine)), sweep_end),
            self.labels: MinibatchData(labels, len(mine), len(mine), sweep_end),
        }

    def get_checkpoint_state(self):
        return {"next": self.next}

    def restore_from_checkpoint(self, state):
        self.next = state["next"]


parser = argparse.ArgumentParser()
parser.add_argument("--learner", choices=["parallel", "block"], default="parallel")
parser.add_argument("--save", help="where each worker writes its model: FILE.RANK")
settings = parser.parse_args()

C.cntk_py.set_fixed_random_seed(1)
source = Sentences()
feature = C.sequence.input_variable(WORDS, is_sparse=True)
label = C.input_variable(KINDS)
last = C.sequence.last(C.layers.Recurrence(C.layers.LSTM(20))(feature))
z = C.layers.Dense(KINDS)(last)
loss, error = C.cross_entropy_with_softmax(z, label), C.classification_error(z, label)

learner = C.sgd(z.parameters, C.learning_parameter_schedule_per_sample(0.1))
if settings.learner == "block":
    learner = C.distributed.block_momentum_distributed_learner(learner, block_size=20)
else:
    learner = C.distributed.data_parallel_distributed_learner(learner)
trainer = C.Trainer(z, (loss, error), [learner], [C.logging.ProgressPrinter(tag="Training", num_epochs=8)])
C.training_session(
    trainer=trainer,
    mb_source=source,
    model_inputs_to_streams={feature: source.features, label: source.labels},
    mb_size=12,
    max_samples=2400,
    progress_frequency=300,
).train()
rank, workers = C.distributed.Communicator.rank(), C.distributed.Communicator.num_workers()
print(f"worker {rank} of {workers} had {source.handed_out} sentences")
if settings.save:
    z.save(f"{settings.save}.{rank}")
C.distributed.Communicator.finalize()
