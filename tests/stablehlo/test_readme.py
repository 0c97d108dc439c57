"""The package's own README runs."""

from tests.docs.test_followed import follow

PAGE = "packages/stablehlo_backend/README.md"


def test_readme(tmp_path):
    assert follow([PAGE], tmp_path) == {PAGE: ""}
