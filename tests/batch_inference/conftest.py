from __future__ import annotations

import pytest

from tests.batch_inference import workers


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return workers.write(tmp_path_factory.mktemp("files"))
