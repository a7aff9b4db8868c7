"""Whole trainings of CNTK 2.7 through the façade: same lines, events, files and parameters."""

from __future__ import annotations

import builtins
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.compat.golden import cases, datasets  # noqa: E402
from tests.compat.logistic import Graph, Module, Recorder, open_source  # noqa: E402
from tests.compat.test_golden_learners import learner_of  # noqa: E402
from tests.compat.test_golden_schedules import made  # noqa: E402

NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
TIME = re.compile(r"\d+\.\d{3}s \( *[\d.]+ samples/s\)")


def frequency(given):
    return (given[0], C.DataUnit[given[1]]) if isinstance(given, list) else given


def size(given):
    return made("minibatch_size_schedule", **given) if isinstance(given, dict) else given


class Run:
    """One run of a case, in the current folder, with a new model, trainer and source."""

    def __init__(self, kind, case, settings, texts):
        self.settings, self.texts = settings, texts
        about = case["model"]
        self.model = kind(about["W"], about["b"], about.get("metric", True), about.get("sequence", False))
        self.learner = learner_of(case["learner"]["name"], case["learner"]["options"], [self.model.W, self.model.b])
        self.printer = None if case["printer"] is None else C.logging.ProgressPrinter(**case["printer"])
        self.recorder = Recorder()
        writers = [writer for writer in (self.printer, self.recorder) if writer is not None]
        self.trainer = C.Trainer(self.model.model, self.model.criterion, [self.learner], writers)
        self.source = self.open(settings.get("train", "train"), settings["source"])
        self.callbacks = []

    def open(self, name, options):
        path = self.texts / f"{name}.ctf"
        return open_source(path, **options)

    def go(self):
        """Steps of a loop, or None."""
        if "loop" in self.settings:
            return [getattr(self, step[0])(*step[1:]) for step in self.settings["loop"]]
        options = {}
        if (checkpoint := self.settings.get("checkpoint")) is not None:
            given = {**checkpoint, "frequency": frequency(checkpoint.get("frequency"))}
            options["checkpoint_config"] = C.CheckpointConfig(**given)
        if (cv := self.settings.get("cv")) is not None:
            options["cv_config"] = C.CrossValidationConfig(
                self.open(cv.get("data", "cv"), cv["source"]) if "source" in cv else None,
                frequency(cv.get("frequency")),
                size(cv.get("minibatch_size", 32)),
                (lambda *told: self.callback(cv.get("stop_after"), *told)) if cv.get("callback") else None,
                cv.get("max_samples"),
            )
        if (test := self.settings.get("test")) is not None:
            source = self.open(test.get("data", "test"), test["source"])
            options["test_config"] = C.TestConfig(source, size(test["minibatch_size"]))
        C.training_session(
            self.trainer,
            self.source,
            size(self.settings["mb_size"]),
            self.model.streams_of(self.source),
            frequency(self.settings.get("progress_frequency")),
            self.settings.get("max_samples"),
            **options,
        ).train()
        return None

    def callback(self, stop_after, *told):
        self.callbacks.append(list(told))
        return stop_after is None or len(self.callbacks) < stop_after

    # ---- steps of a loop

    def train(self, samples):
        minibatch = self.source.next_minibatch(samples, self.model.streams_of(self.source))
        said = {"returned": self.trainer.train_minibatch(minibatch)}
        said["samples_seen"] = self.trainer.total_number_of_samples_seen
        if self.trainer.previous_minibatch_sample_count:
            said["loss"] = self.trainer.previous_minibatch_loss_average
            said["metric"] = self.trainer.previous_minibatch_evaluation_average
            said["samples"] = self.trainer.previous_minibatch_sample_count
        return said

    def test(self, samples, name):
        source = self.open(name, {"max_sweeps": 1, "randomize": False})
        return self.trainer.test_minibatch(source.next_minibatch(samples, self.model.streams_of(source)))

    def summarize_training_progress(self):
        self.trainer.summarize_training_progress()

    def summarize_test_progress(self):
        self.trainer.summarize_test_progress()

    def parameters(self):
        return self.model.values()

    def source_position(self):
        return self.source.get_checkpoint_state()["minibatchSourcePosition"]

    def save_checkpoint(self, external):
        self.trainer.save_checkpoint("m", external)

    def restore_from_checkpoint(self):
        return self.trainer.restore_from_checkpoint("m")

    def restore_source(self, position):
        self.source.restore_from_checkpoint({"minibatchSourcePosition": position})

    def reset_learning_rate(self, schedule):
        self.learner.reset_learning_rate(made(**schedule))


@pytest.mark.parametrize("kind", [Module, Graph])
@pytest.mark.parametrize("case", cases("session.json"))
def test_session_matches_cntk(case, kind, tmp_path, monkeypatch, capsys):
    texts, folder = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    folder.mkdir()
    for name, text in datasets("session.json").items():
        (texts / f"{name}.ctf").write_text(text)
    monkeypatch.chdir(folder)
    for settings, expected in zip(case["runs"], case["expect"], strict=True):
        run = Run(kind, case, settings, texts)
        if "error" in expected:
            with pytest.raises(getattr(builtins, expected["error"]["type"])) as caught:
                run.go()
            assert str(caught.value) == expected["error"]["message"]
        else:
            close(run.go(), expected.get("steps"))
        if run.printer is not None:
            run.printer.end_progress_print()
        out, err = capsys.readouterr()
        same_lines(out.splitlines(), expected["printed"])
        assert [line for line in err.splitlines() if "Restoring" in line] == expected.get("stderr_restore", [])
        close(run.recorder.events, expected["events"])
        close(run.callbacks, expected["cv_callbacks"])
        close(run.parameters(), expected["final_parameters"])
        assert run.trainer.total_number_of_samples_seen == expected["samples_seen"]
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        assert [str(path.relative_to(folder)) for path in files] == expected["files"]
        for name, lines in expected.get("log_files", {}).items():
            same_lines((folder / name).read_text().split("\n"), lines)


def close(mine, theirs):
    """Same structure, numbers to single precision."""
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            close(mine[key], value)
    elif isinstance(theirs, list):
        assert len(mine) == len(theirs)
        for own, other in zip(mine, theirs, strict=True):
            close(own, other)
    elif isinstance(theirs, float):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    else:
        assert mine == theirs


def same_lines(mine, theirs):
    """To the character, but for times and one unit in the last digit of a number."""
    for own, other in zip([TIME.sub("<TIME>s (<RATE> samples/s)", line) for line in mine], theirs, strict=True):
        assert len(own) == len(other), (own, other)
        assert NUMBER.sub("#", own) == NUMBER.sub("#", other)
        for a, b in zip(NUMBER.findall(own), NUMBER.findall(other), strict=True):
            unit = 10.0 ** -len(b.partition(".")[2].partition("e")[0])
            assert abs(float(a) - float(b)) <= 1.001 * unit, (own, other)
