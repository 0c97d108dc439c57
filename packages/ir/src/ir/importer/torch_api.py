"""Everything private to torch that the packages use: each name, what it is for, and in which versions it exists.

torch promises nothing for a name with a leading underscore, nor for `torch.fx.experimental`. All other files take such
names from here (tests/ir/test_torch_api.py finds one that does not), so this is the one file to read when a new torch
breaks something. A name exists in all versions that `ir.importer.versions` admits, unless its comment says otherwise.
Functions stand for attributes of torch's objects, and import what takes long.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx.experimental._config
from torch import _meta_registrations
from torch._C import DispatchKey as DispatchKey  # names the kinds of kernel of an operator
from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped_tensor  # as torch.func's are
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher  # runs composite ops on fakes
from torch._functorch import predispatch as predispatch  # the functions that vmap and grad leave in a graph
from torch._guards import detect_fake_mode as detect_fake_mode  # the mode of fake tensors in arguments
from torch._higher_order_ops.associative_scan import generic_associative_scan as generic_associative_scan  # for eager
from torch._higher_order_ops.scan import scan_op as scan_op  # a loop that stays one node, in decompositions and bodies
from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op  # and one that ends where data says
from torch._library.custom_ops import OPDEFS as OPDEFS  # what torch.library.custom_op defined, by name
from torch._library.fake_impl import FakeImplCtx as FakeImplCtx  # what get_ctx() gives: makes sizes that data decides
from torch._ops import HigherOrderOperator as HigherOrderOperator  # cond, scan and the like
from torch._ops import OpOverload as OpOverload  # an operator with one schema
from torch._ops import OpOverloadPacket as OpOverloadPacket  # all operators of one name
from torch._prims_common import is_contiguous_or_false as is_contiguous_or_false  # for eager: guards on no size
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException  # a fake's data
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # a tensor without data
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # makes them, and runs operators on them
from torch.fx.experimental.proxy_tensor import make_fx as make_fx  # a function as a graph of operators
from torch.fx.traceback import get_current_meta as get_current_meta  # what new nodes are told, while it is preserved
from torch.fx.traceback import preserve_node_meta as preserve_node_meta  # nodes that are run again keep what they know
from torch.utils import _python_dispatch, _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # sees every op that is run

from ir.importer.swapping import swapped

DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException  # a shape that data decides
BUILTIN_TYPES = _pytree.BUILTIN_TYPES  # whose shapes torch.export takes nested alike; of others it takes a list
pytree = _pytree  # nested arguments as flat leaves and a spec; its public twin makes specs of another class
disable_current_modes: Any = _python_dispatch._disable_current_modes  # a block out of a tracer's sight
check_size: Any = torch._check  # `assert` that a tracer notes
wrapper: Any = torch.Tensor._make_wrapper_subclass  # a tensor of a subclass, with a shape and without memory

# -- torch's Python bindings, which the eager programs call ------------------------------------------------------------
# The functions of torch, torch.nn.functional, torch.linalg and torch.special without the Python code around them.
VF: Any = torch._C._VariableFunctions
NN: Any = torch._C._nn
LINALG: Any = torch._C._linalg  # type: ignore[attr-defined]
SPECIAL: Any = torch._C._special  # type: ignore[attr-defined]
addmm_activation: Any = torch._addmm_activation  # a product, a bias and relu or gelu
native_batch_norm_no_training: Any = VF._native_batch_norm_legit_no_training
assert_scalar: Any = VF._assert_scalar  # raises what the model says
ASSERT = "_assert"  # the function of torch that a model calls, which torch.export decides while it traces
assert_of_tensor: Any = torch._assert_async  # as an `assert` of a tensor: an operator
version_of: Any = vars(torch._C.TensorBase)["_version"].__get__  # how often a tensor was written to
set_grad_enabled: Any = torch._C._set_grad_enabled  # the public one makes an object
BelowAutograd: Any = torch._C._AutoDispatchBelowAutograd  # a block that skips the autograd kernels

disable_torch_function: Any = torch._C.DisableTorchFunction  # a block without `__torch_function__` and its modes
parse_schema: Any = torch._C.parse_schema

# -- sizes: what imports sympy, which takes longer than all of ir ------------------------------------------------------


def shape_env(**options: Any) -> Any:
    """A new `ShapeEnv`: the symbols of sizes, and what was asked of them."""
    return importlib.import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv(**options)


def locating(line: Callable[[Any], Any]) -> contextlib.AbstractContextManager[None]:
    """A block in which torch's notes of sizes have `line(note)`, the model's, where they have torch's own alone."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def located(env: Any, framework_loc: Any = None, own: Any = ShapeEnv._get_sloc) -> Any:
        loc = own(env, framework_loc)
        return loc if loc.maybe_user_loc else type(loc)(loc.framework_loc, line(loc))

    unnoted_file(__file__)
    return swapped(ShapeEnv, "_get_sloc", located)


def noting_deferred(met: list[Any]) -> contextlib.AbstractContextManager[None]:
    """A block in which `met` receives, as guards, the conditions that torch has the program assert in their place."""
    from torch._guards import ShapeGuard
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def noted(env: Any, asked: Any, msg: str, fx_node: Any = None) -> Any:
        met.extend([ShapeGuard(asked, env._get_sloc(), False)] if msg.startswith("evaluate_expr: ") else ())
        return defer(env, asked, msg, fx_node)

    defer: Any = ShapeEnv.guard_or_defer_runtime_assert
    return swapped(ShapeEnv, "guard_or_defer_runtime_assert", noted)


def dynamic_symbol(env: Any, hint: int, source: Any) -> Any:
    """A new symbol of a `ShapeEnv`, of the kind (`DimDynamic`) that stays dynamic."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    return env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)


def hints(env: Any) -> Mapping[Any, Any]:
    """The sizes of the example behind the symbols of a `ShapeEnv`."""
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val  # type: ignore[no-any-return]


def statically_known_true(condition: Any) -> bool:
    """Whether a condition on sizes is known to hold; asks without a guard."""
    return importlib.import_module("torch.fx.experimental.symbolic_shapes").statically_known_true(condition)  # type: ignore[no-any-return]


def holds(condition: Any, sizes: Mapping[Any, Any]) -> Any:
    """A condition of sympy where its symbols have these values, which may be symbolic themselves."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return sympy_interp(PythonReferenceAnalysis, dict(sizes), condition)


def truncates(condition: Any) -> bool:
    """Whether a condition has `int()` of a float that sizes decide."""
    from torch.utils._sympy.functions import TruncToInt

    return bool(condition.has(TruncToInt))


def value_range(low: int | None, high: int | None) -> Any:
    """The range of a size; None is an open end."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    return ValueRanges(-int_oo if low is None else low, int_oo if high is None else high)


def size_function(name: str) -> Any:
    """FloorDiv, Mod and others, as functions of sympy; None where torch has none of this name."""
    from torch.utils._sympy import functions

    return getattr(functions, name, None)


def local_piece(tensor: Any) -> torch.Tensor:
    """`_local_tensor` of a DTensor: this process's piece, without a graph of autograd."""
    return tensor._local_tensor  # type: ignore[no-any-return]


def sharded_as(piece: torch.Tensor, whole: Any) -> Any:
    """A DTensor over this piece, as that one is laid out (`_spec`); the public from_local asks the other processes."""
    return type(whole)(piece, whole._spec, requires_grad=False)


def static_or_dynamic(tensor: torch.Tensor, axes: Any) -> Any:
    """How a fake tensor is made: these axes get a symbol, the others keep their size."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    kinds = [DimDynamic.DYNAMIC if axis in axes else DimDynamic.STATIC for axis in range(tensor.dim())]
    return StatelessSymbolicContext(dynamic_sizes=kinds)


# -- attributes of operators -------------------------------------------------------------------------------------------


def schema_of(overload: Any) -> Any:
    """`_schema`: arguments and results with types, defaults and aliases."""
    return overload._schema


def overload_name(overload: Any) -> str:
    """`_overloadname`: "default" where `schema_of(overload).overload_name` is empty."""
    return overload._overloadname  # type: ignore[no-any-return]


def packet_name(packet: Any) -> str:
    """`_qualified_op_name`: "aten::add"."""
    return packet._qualified_op_name  # type: ignore[no-any-return]


def definition_name(definition: Any) -> str | None:
    """`_qualname`: "mylib::add" of what torch.library.custom_op returns; None of what is none."""
    return getattr(definition, "_qualname", None)


def plain_call(overload: Any) -> Any:
    """`_op`: what `overload(...)` forwards to, a Python frame cheaper; None for what is no operator."""
    return getattr(overload, "_op", None)


def has_kernel(name: str, key: str = "") -> bool:
    """True if an operator of this name has a kernel, or one under this dispatch key.

    Raises:
        RuntimeError: it is no name of an operator.
    """
    if key:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    return torch._C._dispatch_has_kernel(name)


def run_kernel(overload: Any, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Run the kernel under one dispatch key (`_op_dk`), past those that Python put in its place (`py_kernels`)."""
    return overload._op_dk(key, *args, **kwargs)


def forget_kernels(overload: Any) -> None:
    """After a change of `py_kernels`: clear what the overload has looked up (`_dispatch_cache`)."""
    overload._dispatch_cache.clear()


def higher_order(name: str) -> Any:
    """The higher-order operator of this name, or None."""
    return torch._ops._higher_order_ops.get(name)


def defined_by(definition: Any) -> Callable[..., Any]:
    """`_init_fn`: the function that was given to torch.library.custom_op."""
    return definition._init_fn  # type: ignore[no-any-return]


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions by overload; core_aten_decompositions() is a part of them."""
    from torch._decomp import global_decomposition_table

    return global_decomposition_table["post_autograd"]


QUANTIZED_DECOMPOSED = "torch.ao.quantization.fx._decomposed"  # whose import defines the operators of this namespace


def register_quantized_decomposed() -> None:
    """Define the operators `quantized_decomposed::*`."""
    importlib.import_module(QUANTIZED_DECOMPOSED)


# -- attributes of tensors, numbers and programs -----------------------------------------------------------------------


def storage_key(tensor: torch.Tensor) -> int:
    """`_cdata` of its storage: one number for each piece of memory, of a fake tensor too.

    Raises:
        NotImplementedError, RuntimeError: the tensor shows no memory (sparse, a subclass, traced under vmap).
    """
    return int(tensor.untyped_storage()._cdata)


def expression(number: Any) -> Any:
    """`node._expr` of a symbolic number: as it was made, where `node.expr` is what guards simplified it to."""
    return number.node._expr


def guards_code(program: Any) -> Any:
    """`_guards_code` of a program out of a file: the conditions that it holds under, as texts of Python."""
    return getattr(program, "_guards_code", None)


def put(program: Any, **parts: Any) -> None:
    """Replace parts of an ExportedProgram by their names without `_` (state_dict): no way to is public."""
    for name, part in parts.items():
        setattr(program, f"_{name}", part)


# -- torch.export ------------------------------------------------------------------------------------------------------


def size_source() -> Any:
    """The class of a source of sizes that stand nowhere in a tensor; torch._dynamo takes seconds to import."""
    return importlib.import_module("torch._dynamo.source").ConstantSource


def unnoted_file(path: str) -> None:
    """`uninteresting_files` gets this one, and those of `files_of_modes`: torch notes no line of them for a size."""
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    shapes.uninteresting_files().update((path, *files_of_modes()))


def files_of_modes() -> tuple[str, ...]:
    """Of torch.export's own function modes: the model's line stands behind them."""
    from torch._export import non_strict_utils  # imports what takes seconds
    from torch.fx.experimental import proxy_tensor

    return non_strict_utils.__file__, proxy_tensor.__file__


def tensor_of_numbers(data: Any, **options: Any) -> Any:
    """`torch.tensor` in Python, in whose place torch.export takes it where numbers are symbolic; imports much."""
    return importlib.import_module("torch._refs").tensor(data, **options)


# Python functions over symbolic numbers: `_sym_sqrt` and others.
sym_functions: dict[str, Any] = {name: fn for name, fn in vars(torch).items() if name.startswith(("sym_", "_sym_"))}


def conv_backend_unnoted(unnoted: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """A block in which fake convolutions ask for their memory format (`_select_conv_backend`) in a block `unnoted`."""
    select = torch._C._select_conv_backend

    def quiet(*args: Any, **kwargs: Any) -> Any:
        with unnoted():
            return select(*args, **kwargs)

    return swapped(torch._C, "_select_conv_backend", quiet)


def pool_shapes(rule: Callable[..., Any]) -> Any:
    """A block in which the sizes of pools are the rule's; torch's asks whether ceil_mode drops the last window.

    The rule's arguments are torch's: size, kernel, padding before and after, stride, dilation, ceil_mode.
    """
    return swapped(_meta_registrations, "pooling_output_shape_pad_lr", rule)


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Inside of the block torch.export neither prints nor warns on its way to an error; TORCH_LOGS works as ever."""
    from torch.export import _trace  # takes seconds to import

    with unlogged(), swapped(_trace, "print", lambda *_, **__: None):
        yield


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Inside of the block torch does not log the errors that it raises."""

    def below_warning(record: logging.LogRecord) -> bool:  # what TORCH_LOGS asks for
        return record.levelno < logging.WARNING

    noisy = "_guards", "_subclasses.fake_tensor", "export._trace", "fx.experimental.symbolic_shapes"
    with contextlib.ExitStack() as stack:
        for logger in (logging.getLogger(f"torch.{name}") for name in noisy):
            logger.addFilter(below_warning)
            stack.callback(logger.removeFilter, below_warning)
        yield


def unvalidated_distributions() -> Any:
    """A block in which torch.distributions leaves out the checks of its parameters, which ask for their data."""
    return swapped(torch.distributions.Distribution, "_validate_args", False)


def conversion(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """`_parse_to`: what a call of `module.to` asks for, the device, dtype and memory format; None for what it does not.

    Raises TypeError, RuntimeError: it is no such call.
    """
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return device, dtype, memory_format


TRACERS = "torch._dynamo", "torch.export._trace"  # what the first torch.export.export imports


def exported_below_autograd(*args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
    """torch.export.export below the keys of autograd and torch.func: what these make of the operators."""
    return importlib.import_module(TRACERS[1])._export(*args, **kwargs, pre_dispatch=False)  # type: ignore[no-any-return]


def size_oblivious() -> Any:
    """A block in which torch's kernels ask for no sizes that they can do without."""
    return torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]


# -- the .pt2 layout ---------------------------------------------------------------------------------------------------
# torch.export.save's archive (since 2.8; 2.9 and 2.10 differ in the spec of trees): records by folder.

PT2_FORMAT = "archive_format"  # a record of torch's own archives; older files are pickles
PT2_BYTE_ORDER = "byteorder"
PT2_MODELS = "models/"  # one JSON text for each program
PT2_WEIGHTS, PT2_CONSTANTS = "data/weights/", "data/constants/"
PT2_EXAMPLES = "data/sample_inputs/"  # the arguments of each program, pickled
PT2_TABLE = "_config.json"  # the table of the tensors in one of these two folders
PT2_COMPILED = ("data/aotinductor/", "data/executorch/", "data/mtia")  # code that is run
PT2_SCHEMA = 8  # the programs' major version: another is another format, a new minor one adds to it


def deserialized(program: Mapping[str, Any], tensors: dict[str, Any], constants: dict[str, Any]) -> Any:
    """The ExportedProgram in a JSON document of torch's serializer; the versions are put in here."""
    from torch._export.serde import schema, serialize

    document = {
        **program,
        "opset_version": {"aten": torch._C._get_max_operator_version()},
        "schema_version": {"major": schema.SCHEMA_VERSION[0], "minor": schema.SCHEMA_VERSION[1]},
    }
    made = serialize._dict_to_dataclass(schema.ExportedProgram, document)
    return serialize.ExportedProgramDeserializer().deserialize(made, tensors, constants, None)


def operator_names() -> list[str]:
    """The names of all operators that torch has, "aten::linear"."""
    return sorted({schema.name for schema in torch._C._jit_get_all_schemas()})
