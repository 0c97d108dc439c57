"""What the packages ask for is what docs/versions.md says was run."""

from ir.importer.versions import NEWEST, OLDEST
from tests.versions import COLUMNS, PAGE, PAIRS, bounds, page, rows


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(rows()), "run python -m tests.versions"


def test_no_row_is_older_than_the_lower_bounds_and_one_is_as_old():
    found = rows()
    for name, version in bounds().items():
        run = min((row[COLUMNS.index(name)] for row in found.values()), key=numbers)
        assert run.startswith(version) if {*found} == {*PAIRS} else numbers(run) >= numbers(version), name


def test_the_versions_of_torch_that_are_admitted_are_the_pairs():
    tested = sorted(numbers(version)[:2] for version in PAIRS.values())
    assert (tested[0], tested[-1]) == (OLDEST, NEWEST)
