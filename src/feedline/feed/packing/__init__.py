"""Which sequences make the next minibatch? One file a rule, over the axis that `axis` walks.

Each rule is a `Packer`: a pure function from a cursor and a size to a `Plan`, so that a read that fails leaves the
source where it was. `whole`: as many whole sequences as fit the budget, the same global minibatch on every rank.
`local`: CNTK's filling, each worker by itself. `lanes`: truncated BPTT, sequences cut into equal lengths. `runs` holds
what lanes are made of.
"""
