"""Logs for tests, as `JsonLines` writes them, and the expected content of their pages."""

from __future__ import annotations

import json
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "input", "link"}


def progress(samples, number=1, loss=0.5, **more):
    """A progress line."""
    streams = {"words": {"samples": 90, "padded": 120, "lengths": [0, 10, 20, 5]}}
    fed = {"minibatches": 5, "sequences": 35, "samples": 90, "smallest": 10, "largest": 20, "pairs": 30}
    line = {
        "event": "progress",
        "samples": samples,
        "sweeps": 0,
        "number": number,
        "minibatches": 5,
        "seconds": 2.0,
        "waiting": 0.25,
        "evaluating": 0.0,
        "saving": 0.125,
        "fed": {**fed, "neighbours": 3, "jumps": 600, "streams": streams},
        "stats": {"held_bytes": 1000, "skipped": 0},
        "rates": [0.1],
        "loss": loss,
        "metric": None,
        "counted": 100,
    }
    return {**line, **more}


def start(samples=0, **more):
    """A start line."""
    about = {"model": "Net", "parameters": 12, "learners": ["Adam"], "corpus": {"sequences": 100, "samples": 1000}}
    return {"event": "start", "samples": samples, "sweeps": 0, **about, **more}


def rank_record(rank, seconds, *, waiting=0.0, working=0.5, exchanging=0.4, steps=10, host=None, stage="fetch"):
    """A short record of a rank: shares of the seconds since its process began, and steps per second."""
    step = {"seconds": seconds * (working + exchanging), "units": round(seconds * steps)}
    feeds = [{"stages": {stage: {"waiting": seconds * waiting}, "step": step}}]
    record = {"rank": rank, "host": host or f"host{rank}", "seconds": seconds, "feeds": feeds}
    return {**record, "exchange_seconds": seconds * exchanging}


def write(path, lines, torn=""):
    """Write a log."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn, encoding="utf-8")
    return path


class Page(HTMLParser):
    """A parsed page. Fails where a tag is not closed.

    Attributes:
        tables: by the id of the chart: the heads, and rows of cells.
        links: every attribute that names another place.
        scripts: their texts.
        text: all visible text.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tables, self.links, self.scripts, self.text, self.ids = [], {}, [], [], "", []
        self.handlers, self.tags = [], set()
        self._chart = self._row = None
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self.links += [
            given[name] for name in ("href", "src", "srcset", "action", "data", "xlink:href") if name in given
        ]
        self.handlers += [name for name in given if name.startswith("on")]
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "section" and "chart" in given.get("class", ""):
            self._chart = given["id"]
        if tag == "tr" and self._chart:
            self._row = []
            self.tables.setdefault(self._chart, []).append(self._row)
        if tag in ("td", "th") and self._row is not None:
            self._row.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "section":
            self._chart = None
        if tag == "tr":
            self._row = None

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data
        if self._row is not None and self.open[-1] in ("td", "th"):
            self._row[-1] += data

    def columns(self, chart):
        """A chart's table as {head: [cell, ...]}."""
        heads, *rows = self.tables[chart]
        return dict(zip(heads, map(list, zip(*rows, strict=True)), strict=True))
