"""Of what is tested for many families CI runs a few; `nox -s language_models -- -m "slow or not slow"` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

FIRST = {"Llama", "Mixtral", "Gemma2", "T5"}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        families = {word for word in call.id.split("-") if word[:1].isupper()} if call else set()
        if item.path.parent == Path(__file__).parent and families and not families & FIRST:
            item.add_marker(pytest.mark.slow)
