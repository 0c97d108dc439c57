"""Of what is tested for many families CI runs Llama and T5, else the first that is named.

`nox -s language_models -- -m "slow or not slow"` runs all.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FIRST = {"Llama", "T5"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    families: dict[str, dict[pytest.Item, set[str]]] = defaultdict(dict)
    for item in items:
        call = getattr(item, "callspec", None)
        named = {word for word in call.id.split("-") if word[:1].isupper()} if call else set()
        if item.path.parent == Path(__file__).parent and named:
            families[item.nodeid.partition("[")[0]][item] = named
    for tests in families.values():
        first = FIRST if any(named & FIRST for named in tests.values()) else next(iter(tests.values()))
        for item, named in tests.items():
            if not named & first:
                item.add_marker(pytest.mark.slow)
