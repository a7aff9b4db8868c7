"""How fast and how small: one question a file, peers beside ours in the same run.

``python -m benchmarks`` (or ``make bench``) answers all of them, prints one table and writes it to
``benchmarks/results/``. Nothing here asserts a time; `harness` says how ratios are formed.
"""

#: In the order of the table. Each name is a module with `run(stage) -> list[Answer]`.
QUESTIONS = (
    "ctf_parse",
    "ctf_index",
    "ctf_end_to_end",
    "dense_shuffled",
    "ragged_tokens",
    "minibatch_overhead",
    "restore",
    "memory",
    "cold",
    "cold_peers",
    "cold_formats",
    "startup",
    "loader_peers",
    "loader_tiny",
    "loader_arrays",
    "loader_python",
    "loader_bytes",
    "loader_first_batch",
    "loader_slow_samples",
    "loader_resume",
    "loader_memory",
    "learners",
    "training_session",
    "checkpoint",
    "networks",
    "kvstore",
    "compression",
    "row_sparse",
    "dist_sync",
    "dist_async",
)
