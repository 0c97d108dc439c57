"""The page of `ir show --html` in Chromium: it opens quickly, folds, finds, and says what a node is.

`python -m tests.browser.test_page` writes the screenshot that docs/ keeps.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ir.cli import main

sync_api = pytest.importorskip("playwright.sync_api", reason="nox -s browser")
SCREENSHOT = Path(__file__).parents[2] / "docs" / "images" / "show.png"
OPENS_WITHIN = 2.0
LARGEST = 3_000_000
NODES = 1_950


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "apt-get install chromium, or name one in the variable CHROMIUM"
    return found


@pytest.fixture(scope="session")
def file(tmp_path_factory: Any) -> Path:
    place = tmp_path_factory.mktemp("page") / "large.html"
    with pytest.raises(SystemExit) as end:
        main(["show", "tests.browser.models:large", "--html", str(place)])
    assert end.value.code == 0
    return place


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """The page, opened without a network; whatever it logs or asks for is a failure."""
    made = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong: list[str] = []
    made.on("console", lambda message: wrong.append(message.text))
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
    made.goto(file.as_uri())
    made.wait_for_selector("body[data-ready]")
    yield made
    assert not wrong
    made.close()


def cards(page: Any, text: str) -> Any:
    return page.locator(".row", has_text=text)


def test_two_thousand_nodes_open_within_two_seconds(browser, file):
    assert file.stat().st_size < LARGEST
    page = browser.new_page()
    start = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert time.perf_counter() - start < OPENS_WITHIN
    assert int(page.locator("#headline").inner_text().split()[0]) >= NODES
    page.close()


def test_modules_fold(page):
    assert cards(page, "stages.0.blocks.0").count() == 1
    page.locator("#tree button", has_text="stages.0").first.click()
    assert cards(page, "stages.0.blocks.0").count() == 0 and cards(page, "stages.0").count() == 1
    cards(page, "stages.0").click()
    assert cards(page, "stages.0.blocks.0").count() == 1
    page.click("#fold-all")
    assert page.locator(".row.scope.open").count() == 0
    page.click("#open-all")
    assert cards(page, "layer_norm").count() > 0


def test_shapes_stand_on_the_edges(page):
    assert "f32[batch, length, 16]" in page.locator("#edges text").all_text_contents()


def test_search_opens_the_way_to_a_node(page):
    page.fill("#search", "stages.7.blocks.3 silu")
    assert page.locator("#found p").inner_text() == "1 node"
    page.press("#search", "Enter")
    assert page.locator(".row.at b").inner_text() == "silu"
    page.fill("#search", "down.weight stages.2")
    assert page.locator("#found p").inner_text() == "24 nodes"
    page.fill("#search", "no such thing")
    assert page.locator("#found p").inner_text() == "0 nodes"


def test_a_click_says_what_a_node_is(page):
    page.fill("#search", "stages.7.blocks.3 silu")
    page.press("#search", "Enter")
    details = page.locator("#details").inner_text()
    for text in ("aten::silu", "models.py:", "F.silu(self.gate(y))", "stages.7.blocks.3", "nnef: a handler of its own"):
        assert text in details
    page.locator("#details a", has_text="aten::linear").first.click()
    details = page.locator("#details").inner_text()
    assert "stages.7.blocks.3.gate.weight f32[32, 16], 2.05 KB" in details and "FLOP" in details
    cards(page, "stages.7.blocks.4").first.click()
    assert "\N{MULTIPLICATION SIGN} mul.Tensor" in page.locator("#details").inner_text()


def test_colours_by_target(page):
    page.select_option("#colour", "nnef")
    legend = page.locator("#legend").inner_text()
    assert "a handler of its own" in legend and "its decomposition" in legend


def test_colours_by_errors(browser, tmp_path):
    """The page of `ir debug --html`: a folded module has the colour of what it holds."""
    place = tmp_path / "nodes.html"
    with pytest.raises(SystemExit) as end:
        main(["debug", "tests.browser.models:small", "-t", "onnx", "-t", "eager", "--html", str(place)])
    assert end.value.code == 0
    page = browser.new_page()
    page.goto(place.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#colour").input_value() == "own:onnx"
    assert "torch's rounding or less" in page.locator("#legend").inner_text()
    page.select_option("#colour", "whole:eager")
    page.click("#fold-all")
    green = page.evaluate("getComputedStyle(document.body).getPropertyValue('--native')")
    assert green and "var(--native)" in cards(page, "stages.0").first.get_attribute("style")
    page.click("#open-all")
    cards(page, "silu").first.click()
    assert "beside torch on eager" in page.locator("#details").inner_text()
    page.close()


def test_the_screenshot_is_kept():
    assert SCREENSHOT.stat().st_size < 300_000


def screenshot(page: Any) -> None:
    page.fill("#search", "stages.3.blocks.0 silu")
    page.press("#search", "Enter")
    page.fill("#search", "")
    page.select_option("#colour", "nnef")
    page.screenshot(path=SCREENSHOT)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder, sync_api.sync_playwright() as driver:
        place = Path(folder, "large.html")
        with pytest.raises(SystemExit):
            main(["show", "tests.browser.models:large", "--html", str(place)])
        made = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        opened = made.new_page(viewport={"width": 1280, "height": 800})
        opened.goto(place.as_uri())
        screenshot(opened)
