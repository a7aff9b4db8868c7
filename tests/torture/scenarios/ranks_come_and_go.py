"""Jobs over gloo whose ranks join, are killed and do not commit steps."""

from __future__ import annotations

from tests import elastic_job
from tests.torture.case import Case
from tests.torture.scenario import Scenario

EVENTS = 25


class RanksComeAndGo(Scenario):
    """Each committed step has the sequences of a single process, and all ranks end together."""

    name = "ranks-come-and-go"
    asks = "is a step of ranks that join, die and do not commit that of a single process?"
    seconds = 600.0

    def run(self, case: Case) -> None:
        kind = list(elastic_job.CASES)[case.number % len(elastic_job.CASES)]
        case.doing(f"{kind}, {EVENTS} events")
        try:
            history, differences = elastic_job.run(kind, case.rng, EVENTS, "fork")
        except AssertionError as error:
            case.fail("hangs" if "hang" in str(error) else "out of place", f"{kind}: {error}")
            return
        for counter, sentences in zip(("lost", "twice", "out of place"), differences, strict=True):
            if sentences:
                case.fail(counter, f"{kind}, ranks {history.counts}: {sentences[:5]}")
        if any(history.codes):
            case.fail("crashes", f"{kind}: ranks ended with {history.codes}")
        case.tally("joins", history.joins)
        case.tally("kills", history.deaths)
        case.tally("steps taken back", history.lost)
        case.tally("compared", sum(map(sum, history.totals)))
