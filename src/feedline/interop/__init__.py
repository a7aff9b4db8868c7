"""Exporters to frameworks: one file each, which alone imports the framework.

`feedline` registers these exporters by name. A file is imported when a value is first exported to its framework.
`tensor_file` stores torch tensors in files, for checkpoints and key-value stores. `ray_session` connects a process to
Ray, `private_ray` starts one for programs that have none, and `ray_supervisor` ends a private Ray. `lightning` and
`accelerate` recognise these frameworks among the callers of a loader, without importing them.
"""
