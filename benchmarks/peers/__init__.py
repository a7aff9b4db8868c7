"""Who feeds faster, and who resumes where it stopped: feedline and the libraries people use, each in its own format.

``make bench-peers`` makes an environment of its own (`install`), the data in each peer's format (`data`), runs every
contender in a fresh process (`run`), in turn (`turns`), and writes one table (`table`). A workload is a file of this
folder with ``WORKLOAD``: its samples, and the contenders, each as its own documentation recommends.
"""

#: Workloads, in the order of the table.
WORKLOADS = (
    "dense",
    "ragged",
    "tiny",
    "python_work",
    "slow_samples",
    "jpeg",
    "text",
    "many_samples",
    "resume",
    "remote",
    "hub",
    "mixtures",
    "packing",
    "time_windows",
    "audio",
    "meshes",
)
