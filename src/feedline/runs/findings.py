"""Findings of a run, in sentences: the most important facts for a reader of the page, with advice.

The thresholds are chosen so that a change is worth the effort: a tenth of the time, three tenths of the rows, half of a
full shuffle, a fifth more work than the mean.
"""

from __future__ import annotations

from feedline.runs.charts import NOT_FINITE, ragged_streams, total_seconds_by_part
from feedline.runs.folder import Run
from feedline.runs.history import History

_WAITING, _SAVING, _PADDING, _MIXED, _UNEVEN = 0.1, 0.1, 0.3, 0.5, 1.2


def findings(run: Run, limited: bool = False) -> list[str]:
    """Return sentences in plain text, those with advice first, an empty list if nothing is remarkable.

    Args:
        run: the run.
        limited: whether it is known what the run waits for, so that nothing is said about that.
    """
    history = run.history
    return [*_loss(history), *_time(history, limited), *_feed(run), *_ranks(history), *_course(history)]


def _course(history: History) -> list[str]:
    sentences = []
    if history.ended is None:
        sentences.append("The log has no end: the run is still in progress, or its process was killed.")
    elif history.ended.get("interrupted"):
        sentences.append("The run was interrupted, and saved before it ended.")
    if history.restarts:
        places = ", ".join(f"{at:,}" for at in history.restarts[:8]) + (", …" if len(history.restarts) > 8 else "")
        sentences.append(
            f"The run resumed {history.resumed} after its process had ended, at {places} label samples. Updates made "
            "twice are counted once."
        )
    if history.torn:
        lines = "1 line" if history.torn == 1 else f"{history.torn} lines"
        sentences.append(f"{lines} of the log could not be read, as a kill leaves them; they are not shown.")
    return sentences


def _loss(history: History) -> list[str]:
    diverged = [span.samples for span in history.spans if span.loss is None and span.counted and not history.is_feed]
    sentences = []
    if diverged:
        at_end = [span.samples for span in history.spans if span.samples >= diverged[0] and span.counted] == diverged
        sentences.append(
            (
                f"The loss is {NOT_FINITE} from the span that ends at {diverged[0]:,} label samples onwards"
                if at_end
                else f"The loss was not a finite number in {len(diverged)} of {len(history.spans)} spans, first at "
                f"{diverged[0]:,} label samples"
            )
            + ": a smaller learning rate, or gradient clipping, may help."
        )
    return sentences


def _time(history: History, limited: bool) -> list[str]:
    parts, sentences = total_seconds_by_part(history), []
    total = sum(parts.values())
    if total and parts.get("waiting for data", 0.0) > _WAITING * total and not limited:
        sentences.append(
            f"{parts['waiting for data'] / total:.0%} of the time was spent waiting for data. More threads= or "
            "read_ahead=, a store instead of text, or fewer random accesses may help; feedline bench measures it."
        )
        if history.transforming > _WAITING * total:
            sentences[-1] += (
                f" Transforms such as decoding kept {history.transforming / total:.2g} threads busy: if those are "
                "all your cores, more cores, smaller pictures or cheaper steps will help."
            )
    if total and parts.get("saving", 0.0) > _SAVING * total:
        sentences.append(f"{parts['saving'] / total:.0%} of the time went into checkpoints: save less often.")
    return sentences


def _feed(run: Run) -> list[str]:
    history, fed, sentences = run.history, run.history.fed(), []
    skipped = max(history.skipped, run.quarantined.count)
    if skipped:
        subject = "1 sequence was" if skipped == 1 else f"{skipped:,} sequences were"
        sentences.append(f"{subject} unreadable and skipped: see errors.")
    for name in ragged_streams(fed):
        assert fed is not None
        stream = fed.streams[name]
        if stream.padded and 1 - stream.samples / stream.padded > _PADDING:
            sentences.append(
                f"Padded, {1 - stream.samples / stream.padded:.0%} of the rows of stream {name} are padding; "
                'layout="packed" or "nested" avoids it.'
            )
    sequences = (history.about.get("corpus") or {}).get("sequences")
    if fed is not None and fed.pairs and sequences and sequences > 2:
        distance = fed.jumps / fed.pairs / (sequences / 3)
        if distance < _MIXED:
            sentences.append(
                f"Sequences delivered one after the other are {distance:.0%} as far apart in the corpus as a full "
                "shuffle brings them: if neighbours are alike, a larger shuffle window mixes better."
            )
    return sentences


def _ranks(history: History) -> list[str]:
    """Return a sentence if squares of lengths are uneven between ranks, and a balance would make them even."""
    measured = history.unevenness()
    if measured is None or measured[0] != "samples":
        return []
    of_squares = {balance: measures.get("squares", 1.0) for balance, measures in measured[1].items()}
    now, balanced = of_squares.get("samples", 1.0), of_squares.get("squares", 1.0)
    # Where one sequence is most of a minibatch, no balance helps.
    if now < _UNEVEN or now - balanced < _UNEVEN - 1:
        return []
    return [
        f"By squares of lengths, as attention costs, the rank with the most work of a minibatch had {now:.3g} times the"
        f' mean, and all others waited for it. partition=fl.Partition(..., balance="squares") would make that '
        f"{balanced:.3g} times."
    ]
