"""IREE is not among what the other sessions install: without it nothing here is collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("iree") else ["test_*.py"]
