"""Complete CNTK scripts, run unchanged: its manual's where they are available, and ours, also by several workers."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.cli.shell import feedline  # noqa: E402
from tests.docs.pages import ROOT  # noqa: E402

SCRIPTS = ROOT / "tests" / "compat" / "scripts"
SEEDS = [folder / "shared" / "seeds" for folder in (ROOT.parent, ROOT.parent.parent)]
EPOCH = re.compile(r"Finished Epoch\[(\d+) of (\d+)\]: \[Training\] loss = ([\d.]+) \* (\d+), metric = ([\d.]+)% \* \4")


def manual(name):
    """A script of CNTK's manual."""
    found = [folder / name for folder in SEEDS if (folder / name).is_file()]
    if not found:
        pytest.skip(f"{SEEDS[0] / name} is not there")
    return found[0]


def epochs(printed):
    """(number, of, loss, samples, metric in %) of each summary."""
    return [tuple(float(part) for part in found) for found in EPOCH.findall(printed)]


def test_a_custom_source_feeds_a_recurrent_classifier(tmp_path):
    printed = feedline("run", "--as", "cntk", manual("seed_000_user_minibatch_source.py"), cwd=tmp_path).stdout
    found = epochs(printed)
    assert [(number, of, samples) for number, of, _, samples, _ in found] == [(k, 10, 20) for k in (1, 2, 3, 4)]
    assert found[-1][2] < 0.3
    assert len(printed.splitlines()) == 5  # and the learning rate


def test_data_larger_than_memory(tmp_path):
    printed = feedline("run", "--as", "cntk", manual("seed_003_out_of_memory.py"), cwd=tmp_path).stdout
    assert float(printed.split()[-1]) < 0.05
    assert len(re.findall(r"Training epoch \d sample \d+ loss", printed)) == 6


READER = """
import cntk as C
import numpy as np

streams = C.io.StreamDefs(pixels=C.io.StreamDef(field='p', shape=6), digit=C.io.StreamDef(field='d', shape=3))
reader = C.io.MinibatchSource(C.io.CTFDeserializer('train.ctf', streams))
pixels, digit = C.input_variable(6, name='pixels'), C.input_variable(3, name='digit')
z = C.layers.Dense(3)(pixels)
learner = C.sgd(z.parameters, C.learning_rate_schedule([0.1] * 3 + [0.05], C.UnitType.sample, epoch_size=90))
trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, digit), C.classification_error(z, digit)), [learner])
named = {'pixels': reader.streams.pixels, 'digit': reader.streams.digit}
for epoch in range(5):
    reader.reset()
    for i in range(0, reader.streams.pixels.size(), 32):
        trainer.train_minibatch(reader.next_minibatch(32, input_map=named))
print(trainer.total_number_of_samples_seen, learner.learning_rate())
print(trainer.previous_minibatch_evaluation_average)
"""


def test_readers_are_reset_and_minibatches_keyed_by_name(tmp_path):
    rng = np.random.default_rng(0)
    with open(tmp_path / "train.ctf", "w") as file:
        for k in rng.integers(0, 3, 90):
            values = rng.uniform(0, 0.1, 6) + np.repeat(np.eye(3)[k], 2)
            file.write(f"|d {' '.join(str(int(i == k)) for i in range(3))} |p {' '.join(f'{v:.3f}' for v in values)}\n")
    (tmp_path / "script.py").write_text(READER)
    counted, wrong = feedline("run", "--as", "cntk", tmp_path / "script.py", cwd=tmp_path).stdout.splitlines()
    # Three minibatches an epoch. The last one crosses the end of the sweep, and continues in the next.
    assert counted == "480 0.05"
    assert float(wrong) == 0


def printed_by(name, tmp_path, monkeypatch, capsys):
    """What one of our scripts in the style of CNTK's tutorials prints, run as it is."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.usefixtures("facade")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cnn", ["convolution layer: (8, 6, 6)", "dense layer: [0. 0. 0. 0.]", "error 0.0 0.0", "same True"]),
        ("series", ["(4, 1)", "\n3 True\n", "metric = ", "\n120\n"]),
        ("chars", ["loss = ", "fell True", "(28,)"]),
        ("tagger", ["(-1, 12) [0. 0. 0. 0. 0.]", "Finished Evaluation [1]", "wrong True", "[2 1 4]"]),
        ("pictures", ["([3 x 8 x 8])", "Finished Evaluation [1]", "* 200;", "seen 800 learned True"]),
        ("seq2seq", ["plain True", "attention True"]),
    ],
)
def test_scripts_like_the_tutorials(name, said, tmp_path, monkeypatch, capsys):
    printed = printed_by(name, tmp_path, monkeypatch, capsys)
    assert [words for words in said if words not in printed] == []
