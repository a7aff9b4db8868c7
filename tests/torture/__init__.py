"""The torture suite: kills, damage, hostile inputs, shortages and races, for as long as it is given.

``make torture [MINUTES=10] [SEED=n]`` runs it and exits with a non-zero code when anything was counted. The counters:

==============  =====================================================================================
lost            a sequence, sample or item that was never delivered, or a run that cannot continue
twice           delivered again where it should not be
out of place    delivered in another place of the order than without the interference
silent          wrong data, numbers or parameters, without an error or a warning
foreign         an exception of another library where feedline promises its own
crashes         a process ended by a signal that nobody sent, or by ``abort``
hangs           no end within many times the usual duration
left over       processes, shared memory, temporary files or locks that stay for good
==============  =====================================================================================

A *scenario* is one way of making life hard (one class, one file in `scenarios`). A *case* is one attempt: its own
process and folder, and random numbers that follow from (seed, scenario, number) alone, so that a case can be
run again: ``make torture SEED=7 CASE=damaged-store/12``. Time is shared out evenly among scenarios, case by case.

Not collected by pytest, except `test_suite.py`, which checks that every counter can rise.
"""
