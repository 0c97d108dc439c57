"""The coverage page is the one that the limits give."""

from tests.coverage_page import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run python -m tests.coverage_page"
