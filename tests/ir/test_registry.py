"""Layers, versions, overloads, duplicates."""

from __future__ import annotations

import pytest

import ir
from ir.registry import Registry, loading


def named(name):
    def handler(h, self):
        return name

    return handler


def found(registry, op, overload=None, version=None):
    handler = registry.lookup(op, overload, version)
    return handler and handler.fn(None, None)


def test_layers_in_order():
    registry = Registry("t")
    for layer in ("builtin", "plugin", "runtime"):
        with loading(layer, "module"):
            registry.add("a::b", named(layer))
        assert found(registry, "a::b") == layer
    assert found(registry.with_handlers({"a::b": named("call")}), "a::b") == "call"
    assert found(registry, "a::b") == "runtime"
    registry.remove("a::b", layer="runtime")
    assert found(registry, "a::b") == "plugin"
    registry.remove("a::b")
    assert registry.lookup("a::b") is None and registry.ops() == ()


def test_an_overload_beats_its_op_within_a_layer():
    registry = Registry("t")
    registry.add("aten::add", named("all"))
    registry.add("aten::add.Tensor", named("tensor"))
    assert found(registry, "aten::add", "aten::add.Tensor") == "tensor"
    assert found(registry, "aten::add", "aten::add.Scalar") == "all"


def test_the_newest_version_not_above_the_one_written():
    registry = Registry("t")
    for version in (9, 13, 18):
        registry.add("a::b", named(version), since_version=version)
    assert [found(registry, "a::b", version=v) for v in (8, 9, 17, 18, 30)] == [None, 9, 13, 18, 18]


def test_duplicates_name_both_places():
    registry = Registry("t")
    registry.add("a::b", named("first"))
    with pytest.raises(ir.DuplicateHandlerError, match=r"test_registry.py:\d+.*test_registry.py:\d+"):
        registry.add("a::b", named("second"))
    registry.add("a::b", named("second"), override=True)
    assert found(registry, "a::b") == "second"


def test_of_two_plugins_the_first_wins():
    registry = Registry("t")
    for module in ("one", "two"):
        with loading("plugin", module):
            registry.add("a::b", named(module))
    assert found(registry, "a::b") == "one"
    with loading("plugin", "one"), pytest.raises(ir.DuplicateHandlerError):
        registry.add("a::b", named("again"))


def test_a_plugin_that_fails_leaves_nothing_of_what_it_replaced_itself():
    registry = Registry("t")
    with pytest.raises(RuntimeError), loading("plugin", "one"):
        registry.add("a::b", named("first"))
        registry.add("a::b", named("second"), override=True)
        raise RuntimeError
    assert registry.lookup("a::b") is None


def test_names_without_a_namespace_are_refused():
    with pytest.raises(ValueError, match="namespace"):
        Registry("t").add("relu", named("x"))
