"""DESIGN.md: its drawing is that of the import graph, and it stays a map."""

from tests.docs.layers import END, PAGE, START, drawing, page

LINES = 120


def test_the_drawing_is_that_of_the_import_graph():
    text = PAGE.read_text()
    assert START in text and END in text
    assert text == page(text, drawing()), "write it anew: python -m tests.docs.layers"


def test_the_map_has_two_pages():
    assert len(PAGE.read_text().splitlines()) <= LINES
