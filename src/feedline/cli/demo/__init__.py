"""``feedline demo``: the main job on real data. Train, kill, resume, and prove that nothing was lost or repeated.

`train` is the program that is killed and resumed, and reads as an example; `words` makes its data; `ledger` writes
down what was delivered; `run` directs; `report` shows. Guarantees: whatever way it ends, no process and no large file
stays behind.
"""
