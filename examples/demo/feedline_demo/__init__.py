"""``feedline demo``: the main job on real data. Train, kill, resume, and prove that nothing was lost or repeated.

`train` is the program that is killed and resumed, written to be read as an example; `words` makes its data; `ledger`
records what was delivered; `run` directs; `report` shows the result. Guarantees: however it ends, no process and no
large file is left behind.
"""
