"""Packing rules: which sequences make the next minibatch. One file per rule, over the axis that `axis` walks.

Each rule is a `Packer`: a pure function from a cursor and a size to a `Plan`, so that a failed read leaves the source
where it was. `whole`: as many whole sequences as fit the budget, the same global minibatch on every rank, of which each
takes its part. `cntk_filling`: each rank fills its minibatches by itself, as in CNTK. `lanes`: truncated BPTT, which
cuts sequences into equal lengths and keeps the queues of `runs`. `ownership` determines the sequences of a rank.
"""
