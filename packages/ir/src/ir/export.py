"""The one call: a model in, an artifact of a target out, checked against torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ir import deploying
from ir import plugins as _plugins
from ir.debug.certificate import certificate_path, check_own
from ir.debug.ranges import check_narrowing, narrowed
from ir.errors import warn
from ir.exported import Exported
from ir.files import staged, writable
from ir.importer.autocasts import uncast
from ir.importer.capture import arguments, capture
from ir.importer.wrong_calls import named_handlers, unused_handlers
from ir.loading import loaded
from ir.lower import lower
from ir.passes.own_state import not_kept, with_own_state
from ir.progress import stage
from ir.specialization import hold_specialized
from ir.target import A, Target
from ir.view.report import Notes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    import ir.signatures as t


# What an editor completes and a type checker sees: the options of the target that is named, and its artifact.


@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Literal["onnx"] = ..., **options: Unpack[t.OnnxOptions]
) -> Exported[t.OnnxModel]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Literal["nnef"], **options: Unpack[t.TractOptions]
) -> Exported[t.NnefDocument]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Literal["khronos"], **options: Unpack[t.KhronosOptions]
) -> Exported[t.NnefDocument]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Literal["eager"], **options: Unpack[t.EagerOptions]
) -> Exported[t.EagerProgram]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Literal["stablehlo"], **options: Unpack[t.HLOOptions]
) -> Exported[t.StableHLOModule]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: Target[A], **options: Unpack[t.Common]
) -> Exported[A]: ...  # fmt: skip
@overload
def export(
    model: Any, args: Any = (), kwargs: Any = None, *, target: str, **options: Unpack[t.Common]
) -> Exported[Any]: ...  # fmt: skip
@uncast
def export(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "onnx",
    path: str | os.PathLike[str] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    handlers: Mapping[Any, Callable[..., Any]] | None = None,
    plugins: Sequence[str] = (),
    discover_plugins: bool = False,
    strict_plugins: bool = False,
    verify: bool | Literal["thorough"] = False,
    certificate: Literal["metadata"] | None = None,
    report: str | os.PathLike[str] | None = None,
    dtype: Any = None,
    keep_float32: Sequence[str] = (),
    max_error: float | None = None,
    deploy: str | None = None,
    **options: Any,
) -> Exported:
    """Export a model to a target.

    Args:
        model: an nn.Module, a torch.export.ExportedProgram, the path of a .pt2 file, or an ir.Graph.
        args: example arguments, as for torch.export.export; a tensor may stand for a tuple of it alone.
        kwargs: example arguments by name.
        target: "onnx", "nnef", "khronos", "eager", or a Target object.
        path: where to write the artifact; nothing is written without it.
        dynamic_shapes: torch.export's own argument; a string in place of a Dim names a dynamic dimension.
        input_names: names for the flat tensor inputs, in order.
        output_names: names for the flat tensor outputs.
        handlers: handlers by op (`torch.ops.aten.relu.default`, or a name, "aten::relu"), for this call alone and
            before all others.
        plugins: modules that register handlers; IR_PLUGINS names more, `discover_plugins` asks for entry points.
        strict_plugins: a plugin that raises while it is imported is an error, and not a warning. A name in `plugins`
            that is no module is an error always.
        verify: run the artifact (from its file, if there is one) and compare with torch on the example arguments, and
            at other sizes of the dynamic dimensions. "thorough" then tries every operator signature alone on random
            and adversarial inputs: `program.certificate`, and as JSON beside the file, `<path>.certificate.json`.
        certificate: "metadata" keeps that certificate in the file as well, where the target has a place for it: an ONNX
            model's metadata, under "ir.certificate".
        report: a Markdown file that says how the model was captured, what each op became, what was refused, sizes,
            errors and versions: what one attaches to an issue. It is written where the export is refused, too.
        dtype: "float16" or "bfloat16": what float32 becomes inside of the program; inputs and results stay as they are.
            For target "eager" alone, without the next two, it is that target's own option.
        keep_float32: nodes that stay in float32 then: their names, paths or patterns of modules, or ops.
        max_error: find which nodes have to stay in float32 for the results to be within this error, in units of their
            largest magnitude; `program.kept_float32` names them, and verification holds the program to it.
        deploy: "triton" writes Triton's config.pbtxt as well; `path` is then REPOSITORY/NAME/VERSION/model.onnx.
        **options: the target's own options, such as opset=18.

    Warns:
        UserWarning: the model's code asks whether a dynamic size is 0 or 1, or branches on sizes in another way; the
            program refuses such sizes where the model itself, run at them on the example, gives other results. A
            handler of `handlers` was not used. The model writes to buffers, which the target does not keep from call
            to call.

    Raises:
        CaptureError, UnsupportedOpsError, RefusedError, MismatchError, PluginError: see ir.errors. No file is left
            behind by any of them, and an older file at `path` stays as it was.

    Examples:
        >>> program = ir.export(model, args, path="model.onnx", dynamic_shapes=({0: "B"},), verify=True)
        >>> program(torch.ones(7, 3)).shape
        torch.Size([7, 2])
    """
    own = target == "eager" and not keep_float32 and max_error is None
    chosen = _plugins.find_target(target, options | ({"dtype": dtype} if own and dtype is not None else {}))
    if verify not in (True, False, "thorough"):
        raise ValueError(f'verify={verify!r:.40}: True, False or "thorough"')
    check_narrowing(dtype, keep_float32, max_error)
    deploying.check(deploy, chosen.name, path)
    if certificate not in (None, "metadata") or (certificate and verify != "thorough"):
        raise ValueError(f'certificate={certificate!r:.40}: "metadata", beside verify="thorough", or nothing')
    if path is not None:
        chosen.check_path(writable(path))
        if verify == "thorough":
            check_own(certificate_path(Path(path)))
    noted = Notes(chosen, options, path, report)
    with noted.written():
        _plugins.load(plugins, discover=discover_plugins, strict=strict_plugins)
        _plugins.warn_of_misspelt()
        handlers = named_handlers(handlers)
        args, kwargs = arguments(args, kwargs)
        graph = noted.graph = capture(
            model, args, kwargs, dynamic_shapes=dynamic_shapes, input_names=input_names, output_names=output_names
        )
        graph = noted.graph = with_own_state(hold_specialized(graph, args, kwargs, bool(verify)))
        if not chosen.keeps_state and (said := not_kept(graph)):
            warn(said)
        registry = chosen.registry.with_handlers(handlers)
        kept: tuple[str, ...] = ()
        if dtype is not None and not own:
            call = (args, kwargs) if args or kwargs else None
            graph, kept, max_error = narrowed(graph, chosen, registry, call, dtype, keep_float32, max_error)
            noted.graph = graph
        artifact = lower(graph, chosen, registry)
        for message in unused_handlers(handlers, registry.used, graph):
            warn(message)
        program = noted.program = Exported(chosen, graph, artifact, None, handlers)
        program.max_error, program.kept_float32 = max_error, kept
        given = (args, kwargs) if args or kwargs else graph.context.example() if verify else ()
        if certificate is not None:  # which is to be in the file that is compared
            chosen.annotate(artifact, "ir.certificate", program.certify(*given, cached=not handlers).json())
        if path is not None:
            _written(program, Path(path), given, verify)
            deploying.write(deploy, graph, Path(path))
        elif verify:
            program.verify_by(program.runner, *given, others=True)
            _certified(program, given, verify)
    return program


def _written(program: Exported, path: Path, given: Any, verify: bool | str) -> None:
    """The artifact in its place, compared with torch on what is given before it comes there."""
    target = program.target
    with staged(path, target.check_path, target.side_files, target.is_side_file) as temporary:
        with stage("write", target.weight_bytes(program.graph)):
            target.write(program.artifact, temporary)
        if verify:
            with stage("verify"):
                runner = loaded(target, program.artifact, program.graph, temporary)
                program.verify_by(runner, *given, others=True)
            close = getattr(runner, "close", None)
            if close is not None:
                close()
            _certified(program, given, verify)
    program.path = path
    if program.certificate is not None:
        program.certificate.save(certificate_path(path))


def _certified(program: Exported, given: Any, verify: bool | str) -> None:
    """Every operator alone, where that was asked for; one that was tried before the file was written has its notes."""
    if program.certificate is not None:
        program.report = replace(program.report, notes=(*program.report.notes, *program.certificate.notes))
    elif verify == "thorough":
        program.certify(*given, cached=not program.handlers)
