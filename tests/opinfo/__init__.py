"""torch's operator database (`op_db`) on a target: `python -m tests.opinfo --help`; the results stand in docs/."""
