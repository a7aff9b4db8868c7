"""``python -m tests.torture [--minutes 10] [--seed n] [--only a,b] [--case name/number]``. See the package."""

from __future__ import annotations

import os

# One thread per library: cases are forked, which threads do not survive.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# Others first reserve a gigabyte of addresses, which a memory limit counts as an allocation.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"

import argparse  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run the requested cases, return 0 if no failure was counted."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of everything random; drawn if not given")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time")
    parser.add_argument("--only", default="", help="names of scenarios, with commas")
    parser.add_argument("--case", default="", help="one case: scenario/number, or scenario/first-last")
    parser.add_argument("--plants", nargs="?", const="all", help="plant defects, one or all, and see who notices")
    parser.add_argument("--keep", action="store_true", help="leave the folders of cases that failed")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    options = parser.parse_args(arguments)

    from tests.torture import plants, preload
    from tests.torture.scenarios import ALL
    from tests.torture.suite import Suite

    known = {scenario.name: scenario for scenario in ALL}
    if options.list:
        print("\n".join(f"{name:<24}{scenario.asks}" for name, scenario in known.items()))
        return 0
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    name, _, which = options.case.partition("/")
    wanted = [name] if options.case else options.only.split(",") if options.only else list(known)
    if unknown := [one for one in wanted if one not in known]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    print(
        f"torture: seed {seed}, {'case ' + options.case if options.case else f'{options.minutes:g} minutes'}",
        flush=True,
    )
    warnings.simplefilter("ignore")
    preload.everything()
    if options.plants:
        wanted_plants = [one for one in plants.PLANTS if options.plants in ("all", one.name)]
        missed = plants.check(wanted_plants, seed, sys.stdout)
        print(f"missed: {', '.join(missed)}" if missed else f"all {len(wanted_plants)} plants were noticed")
        return int(bool(missed) or not wanted_plants)
    suite = Suite([known[one] for one in wanted], seed, max(1, options.jobs), options.keep)
    if options.case:
        first, _, last = which.partition("-")
        suite.repeat(known[name], range(int(first), int(last or first) + 1))
    else:
        suite.run(60 * options.minutes)
    verdict = f"seed {seed}: {'FAILED' if suite.failed else 'all counts are 0'}"
    # Failures are repeated last, for readers who see only the end of a long log.
    print("", suite.table(), *suite.findings, verdict, sep="\n\n", flush=True)
    return int(suite.failed)


if __name__ == "__main__":
    sys.exit(main())
