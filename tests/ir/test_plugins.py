"""Plugins: order of loading, first wins, nothing imported unless asked for."""

from __future__ import annotations

import sys

import pytest

import ir
from ir import plugins
from ir.registry import registry
from ir.target_names import KNOWN

SOURCE = 'from ir.registry import registry\n@registry("toyplug").register("a::b")\ndef _(h, x): return "{name}"\n'


@pytest.fixture
def modules(tmp_path, monkeypatch):
    for name in ("plug_one", "plug_two", "plug_three"):
        (tmp_path / f"{name}.py").write_text(SOURCE.format(name=name))
    (tmp_path / "plug_broken.py").write_text("raise RuntimeError('no')")
    info = tmp_path / "toyplug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyplug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ir.handlers]\nthree = plug_three\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    registry("toyplug").entries.clear()
    for name in [n for n in sys.modules if n.startswith("plug_")]:
        del sys.modules[name]


def winner():
    return registry("toyplug").lookup("a::b").fn(None, None)


def test_explicit_then_environment_then_entry_points_first_wins(modules, monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, "plug_two")
    loaded = plugins.load(["plug_one"], discover=True)
    assert [(p.module, p.source) for p in loaded] == [
        ("plug_one", "explicit"), ("plug_two", "environment"), ("plug_three", "entry point of toyplug 1.0"),
    ]  # fmt: skip
    assert winner() == "plug_one"


def test_a_module_named_twice_keeps_its_first_place(modules, monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, "plug_two,plug_one,plug_three")
    assert [(p.module, p.source) for p in plugins.found(["plug_one"])] == [
        ("plug_one", "explicit"), ("plug_two", "environment"), ("plug_three", "environment"),
    ]  # fmt: skip


def test_entry_points_are_not_loaded_unless_asked_for(modules):
    assert plugins.load() == [] and "plug_three" not in sys.modules
    mine = [p.module for p in plugins.found(discover=True) if "toyplug" in p.source]  # other plugins may be installed
    assert mine == ["plug_three"] and "plug_three" not in sys.modules
    plugins.load(discover=True)
    assert winner() == "plug_three"


def test_a_broken_plugin_warns_or_with_strict_raises(modules):
    with pytest.warns(UserWarning, match="plug_broken"):
        assert [p.module for p in plugins.load(["plug_broken", "plug_one"])] == ["plug_one"]
    with pytest.raises(ir.PluginError, match="plug_broken"):
        plugins.load(["plug_broken"], strict=True)


def test_a_name_in_the_list_that_is_no_module_is_an_error_and_in_the_variable_a_warning(modules, monkeypatch):
    for strict in (False, True):
        with pytest.raises(ir.PluginError, match=r"plug_nope .* plugins are modules, by the names that import takes"):
            plugins.load(["plug_nope"], strict=strict)
    monkeypatch.setenv(plugins.VARIABLE, "plug_nope")
    with pytest.warns(UserWarning, match=r"plug_nope.* \(environment\) could not be imported"):
        assert plugins.load() == []
    with pytest.raises(ir.PluginError, match="plug_nope"):
        plugins.load(strict=True)


def test_handlers_registered_at_run_time_beat_plugins(modules):
    registry("toyplug").add("a::b", lambda h, x: "mine")
    plugins.load(["plug_one"])
    assert winner() == "mine"


def test_a_plugin_that_comes_too_late_is_told(modules, recwarn):
    plugins.load(["plug_one", "plug_two"])  # in the order asked for
    assert not [w for w in recwarn if "plug_" in str(w.message)]
    with pytest.warns(UserWarning, match="plug_two: its handler of a::b .* since plug_one was loaded earlier"):
        plugins.load(["plug_two"])
    assert winner() == "plug_one"


HALF = """
import torch
import ir
from ir.registry import registry
import half_package.helper

@registry("toyplug").register("a::b")
def _(h, x): return "half"

ir.op("aten::relu").body(lambda x: x)
if half_package.broken:
    raise RuntimeError("no")
"""


def test_a_plugin_that_fails_half_way_leaves_nothing_and_can_be_loaded_again(modules, tmp_path):
    from ir.importer.bodies import BODIES

    folder = tmp_path / "half_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("broken = True")
    (folder / "helper.py").write_text(SOURCE.format(name="helper").replace("a::b", "a::c"))
    (folder / "handlers.py").write_text(HALF)
    registry("toyplug").add("a::b", lambda h, x: "mine")
    with pytest.raises(ir.PluginError, match="RuntimeError: no"):
        plugins.load(["half_package.handlers"], strict=True)
    assert winner() == "mine" and registry("toyplug").ops() == ("a::b",)
    assert "aten::relu" not in BODIES and not [n for n in sys.modules if n.startswith("half_package")]
    (folder / "__init__.py").write_text("broken = False  # by now")
    plugins.load(["half_package.handlers"], strict=True)
    assert registry("toyplug").ops() == ("a::b", "a::c") and "aten::relu" in BODIES
    del BODIES["aten::relu"]
    for name in [n for n in sys.modules if n.startswith("half_package")]:
        del sys.modules[name]


def install(folder, name, group, entry, code):
    """A package with one entry point, and the module behind it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    (folder / f"{name}_backend.py").write_text(code)


def test_a_target_that_is_broken_leaves_the_others(tmp_path, monkeypatch):
    install(tmp_path, "half", "ir.targets", "half = half_backend:Half", "import a_runtime_that_is_not_here")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KNOWN, "half", "half_backend")
    working, broken = plugins.working_targets()
    assert {t.name for t in working} <= plugins.targets().keys() - {"half"}
    (said,) = (text for text in broken if "half" in text)
    assert "'half' (half_backend:Half) could not be imported: ModuleNotFoundError" in said


def test_a_target_of_another_package_is_imported_where_it_is_named(tmp_path, monkeypatch):
    install(tmp_path, "other", "ir.targets", "other = other_backend:Other", "raise SystemExit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    _, left = plugins.working_targets()
    assert "target 'other' (other_backend:Other) is of another package: --target other takes it" in left
    with pytest.raises(ir.PluginError, match=r"'other' \(other_backend:Other\) could not be imported: SystemExit: 7"):
        plugins.find_target("other", {})


def test_a_target_that_two_packages_claim_is_refused(tmp_path, monkeypatch):
    for name in ("one", "two"):
        install(tmp_path / name, name, "ir.targets", f"twin = {name}_backend:T", "raise SystemExit(7)")
        monkeypatch.syspath_prepend(tmp_path / name)
    with pytest.raises(ir.PluginError, match=r"'twin' is claimed by several packages: .*one 1.0 \(one_backend:T\)"):
        plugins.find_target("twin", {})
