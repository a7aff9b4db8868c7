"""Every example runs, and reaches the result that it claims."""

from __future__ import annotations

import importlib.util
import os
import re

import numpy as np
import pytest

import feedline as fl
from tests import warm
from tests.docs.pages import IMPORTED_FROM, ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = ROOT / "examples"
ATIS = [folder / "shared" / "data" / "atis.train.ctf" for folder in (ROOT.parent, ROOT.parent.parent)]
TESTED = {
    "cntk_own_source",
    "matrix_factorisation",
    "async_lstm",
    "tagging",
    "sequence_classifier",
    "digits",
    "faces",
    "picture_classifier",
    "user_source",
    "killed_and_resumed",
    "torchft_replicas",
    "parallel_data",
    "data_parallel_lstm",
    "language_model",
    "keyword_spotter",
    "vision_language_model",
    "robot_policy",
}

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples are out of reach of a test of the wheel")


@pytest.fixture
def main(request):
    """An example's `main`."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(request.param, EXAMPLES / f"{request.param}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def example(name):
    return pytest.mark.parametrize("main", [name], indirect=True)


def test_all_examples_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


@example("tagging")
def test_tagging_of_made_up_sentences(main, tmp_path):
    """Labels that depend on the word and on the one before: learned from both."""
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 12, size=rng.integers(1, 15)) for _ in range(400)]
    labels = [(s + np.concatenate([[0], s[:-1]])) % 3 for s in sentences]
    fl.write_ctf(tmp_path / "made.ctf", S0=fl.Value.one_hot(sentences, 12), S2=fl.Value.one_hot(labels, 3))
    arguments = [str(tmp_path / "made.ctf"), "--words", "12", "--labels", "3", "--sweeps", "8"]
    assert main(arguments) < 0.03


@example("tagging")
def test_tagging_of_atis(main, tmp_path, monkeypatch):
    """Under 3 % of the words wrong, after one sweep already."""
    found = [path for path in ATIS if path.is_file()]
    if not found:
        pytest.skip(f"{ATIS[0]} is not there")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main([str(found[0]), "--sweeps", "1"]) < 0.03


@pytest.mark.frameworks("soundfile", "soxr")
@example("keyword_spotter")
def test_keyword_spotter(main, tmp_path, monkeypatch):
    """Hears a rising tone among others, in recordings that it has not learned from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["--sweeps", "5"]) < 0.1


@example("sequence_classifier")
def test_sequence_classifier(main):
    assert main([]) < 0.05


@example("digits")
def test_digits(main, tmp_path):
    assert main(["--folder", str(tmp_path)]) < 0.03
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "checkpoints", "run.jsonl"]


@example("user_source")
def test_user_source(main):
    assert main([]) < 0.01


@example("matrix_factorisation")
def test_matrix_factorisation(main):
    """The noise of the ratings is 0.1. Without learning the error is 2."""
    assert main([]) < 0.12


def run(name, *arguments):
    """Return the output of a whole program. Workers import the program, so it must be one."""
    done = warm.run(
        [str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": IMPORTED_FROM},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_parallel_data():
    printed = run("parallel_data")
    assert printed.endswith("gone on with 1 worker instead of 2: the same model\n")
    wrong = re.search(r"epoch 5: ([\d.]+)% of 128 pictures wrong", printed)
    assert float(wrong[1]) < 10


@pytest.mark.slow
def test_killed_and_resumed():
    printed = run("killed_and_resumed")
    assert "killed 2 times" in printed
    assert printed.endswith("the same parameters, bit for bit\n")


@pytest.mark.slow
@pytest.mark.frameworks("torchft")
def test_torchft_replicas():
    """It compares sequences and weights itself."""
    printed = run("torchft_replicas", "--seconds", "0.03")
    assert "replica 1 was killed in step 20" in printed
    assert re.search(r"replica 1: \d\d minibatches, among 3 to 3 replicas", printed)
    assert printed.endswith("100 steps, 3000 sequences: each once, and the weights of one process\n")


@pytest.mark.slow
@example("language_model")
def test_language_model(main, monkeypatch, capsys):
    """It compares the losses itself, and ends with an error where they differ."""
    warm.start()
    monkeypatch.setattr("subprocess.Popen", warm.Interpreter)
    main(["--steps", "16", "--rows", "8", "--row", "128"])
    printed = capsys.readouterr().out
    losses = {
        int(step): float(loss) for step, loss in re.findall(r"^ +(\d+) +\d  .*  ([\d.]+)  +\S+$", printed, re.MULTILINE)
    }
    assert losses[15] < losses[0] - 1
    assert re.findall(r"killed in step (\d+)", printed) == ["6", "11"]
    shares = [line.split()[1:] for line in printed.splitlines() if "%" in line]
    assert shares[0::2] == [["50.0%", "30.0%", "20.0%"], ["20.0%", "60.0%", "20.0%"]]
    # Up to a row of 64.
    for declared, delivered in zip(shares[0::2], shares[1::2], strict=True):
        assert [float(each[:-1]) for each in delivered] == pytest.approx(
            [float(each[:-1]) for each in declared], abs=1.6
        )


@example("faces")
def test_faces_of_made_up_persons(main):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    assert main(["--persons", "6", "--pictures", "16", "--epochs", "4"]) < 0.4  # by chance: 0.83


@example("robot_policy")
def test_a_robot_that_imitates(main):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    assert main(["--episodes", "80", "--sweeps", "6"]) > 0.25  # without learning: 0.05


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow is not installed")
def test_picture_classifier():
    printed = run("picture_classifier", "--pictures", "200", "--sweeps", "2")
    assert "killed after 224 pictures\nresumed at 160 pictures\n" in printed
    assert printed.endswith("the same model, bit for bit\n")


@pytest.mark.slow
@pytest.mark.frameworks("ray")
def test_async_lstm():
    found = re.findall(r"worker (\d) of 2: ([\d.]+)% of the sentences wrong", run("async_lstm"))
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    assert all(float(wrong) < 5 for _, wrong in found)


@example("vision_language_model")
def test_vision_language_model(main):
    """Colours and patterns of pictures that it has not seen. One in four colours and one in two patterns is right by
    chance."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    assert main(["--documents", "400", "--sweeps", "8", "--rows", "2"]) < 0.2
