"""Which sequences make the next minibatch? One file a rule, over the axis that `axis` walks.

`whole`: as many whole sequences as fit the budget, the same global minibatch on every rank. `local`: CNTK's
filling, each worker by itself. `lanes`: truncated BPTT.
"""
