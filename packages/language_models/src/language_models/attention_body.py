"""GroupQueryAttention in ONNX's own ops: the function that goes into a file beside the nodes, for other runtimes.

onnxruntime has a kernel and does not look at it. All nodes of a file call one function of this name, so it has what
any of them needs: inputs that a node lacks are empty, numbers that differ from node to node are attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DOMAIN, NAME = "com.microsoft", "GroupQueryAttention"
INPUTS = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
          "sin_cache", "position_ids", "attention_bias", "head_sink")  # fmt: skip
_ATTRIBUTES = {"scale": "float = 1.0", "softcap": "float = 0.0", "local_window_size": "int = -1",
               "do_rotary": "int = 0", "rotary_interleaved": "int = 0"}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """What the nodes of a file have: `packed` and `interleaved` all of them or none, the rest some of them at least.

    `rotary_everywhere`: no node is without.
    """

    packed: bool
    rotary: bool
    rotary_everywhere: bool
    interleaved: bool
    softcap: bool
    sinks: bool

    @property
    def inputs(self) -> int:
        """How many inputs each node has, empty ones with them."""
        return 12 if self.sinks else 9 if self.rotary else 7


def function(form: Form, opset: int) -> Any:
    """The function, as onnx has it."""
    import onnx.parser

    given = ", ".join(INPUTS[: form.inputs])
    attributes = "num_heads, kv_num_heads, " + ", ".join(f"{n}: {t}" for n, t in _ATTRIBUTES.items())
    parts = (_NUMBERS, _PACKED if form.packed else _APART, _rotary(form), _JOINED, _SCORES,
             _SOFTCAP if form.softcap else "capped = Identity(scores)", _MASK,
             _SINKS if form.sinks else "weights = Softmax <axis = -1> (masked)", _OUTPUT)  # fmt: skip
    head = f'<opset_import: ["" : {opset}], domain: "{DOMAIN}">\n{NAME} <{attributes}> ({given})'
    lines = "\n".join(parts)
    return onnx.parser.parse_function(f"{head} => (output, present_key, present_value) {{\n{lines}\n}}")


def _rotary(form: Form) -> str:
    if not form.rotary:
        return "turned_query = Identity(queries)\nturned_key = Identity(keys)"
    turns = "\n".join(
        (_PAIRS if form.interleaved else _HALVES).replace("$", name).replace("@of", rows)
        for name, rows in (("query", "queries"), ("key", "keys"))
    )
    text = f"{_TABLES}\n{turns}"
    if form.rotary_everywhere:
        return text
    # sub-graphs of the parser's text have no inputs, and name what they give
    return (
        "does = Constant <value_int: int = @do_rotary> ()\nturns = Cast <to = 9> (does)\n"
        "turned_query, turned_key = If (turns) <\n"
        f"then_branch = turning () => (turned_query, turned_key) {{\n{text}\n}},\n"
        "else_branch = passing () => (passed_query, passed_key) {\n"
        "passed_query = Identity(queries)\npassed_key = Identity(keys)\n}>"
    )


# heads, sizes, and how many tokens of each text were there before: [B, 1]
_NUMBERS = """
heads = Constant <value_int: int = @num_heads> ()
groups = Constant <value_int: int = @kv_num_heads> ()
window = Constant <value_int: int = @local_window_size> ()
factor = Constant <value_float: float = @scale> ()
zero = Constant <value_int = 0> ()
one = Constant <value_int = 1> ()
none = Constant <value_ints = [0]> ()
single = Constant <value_ints = [1]> ()
last = Constant <value_ints = [-1]> ()
rest = Constant <value_ints = [-1]> ()
third = Constant <value_ints = [2]> ()
some_heads = Reshape (heads, single)
some_groups = Reshape (groups, single)
each = Div (some_heads, some_groups)
batch = Shape <start = 0, end = 1> (query)
new = Shape <start = 1, end = 2> (query)
past = Shape <start = 2, end = 3> (past_key)
width = Shape <start = 3, end = 4> (past_key)
news = Squeeze (new)
lengths = Cast <to = 7> (seqlens_k)
counted = Add (lengths, one)
minus = Sub (counted, news)
kept = Max (minus, zero)
column = Concat <axis = 0> (batch, single)
before = Reshape (kept, column)
steps = Range (zero, news, one)
ends = Add (before, steps)
query_shape = Concat <axis = 0> (batch, new, some_heads, width)
key_shape = Concat <axis = 0> (batch, new, some_groups, width)
"""

_PACKED = """
query_width = Mul (some_heads, width)
key_width = Mul (some_groups, width)
widths = Concat <axis = 0> (query_width, key_width, key_width)
only_query, only_key, only_value = Split <axis = 2> (query, widths)
queries = Reshape (only_query, query_shape)
keys = Reshape (only_key, key_shape)
values = Reshape (only_value, key_shape)
"""

_APART = """
queries = Reshape (query, query_shape)
keys = Reshape (key, key_shape)
values = Reshape (value, key_shape)
"""

# cosines and sines [B, S, 1, W] of each token's place in its text
_TABLES = """
half = Shape <start = 1, end = 2> (cos_cache)
turning_width = Add (half, half)
all_width = Shape <start = 3, end = 4> (past_key)
cos_rows = Gather <axis = 0> (cos_cache, ends)
sin_rows = Gather <axis = 0> (sin_cache, ends)
cos = Unsqueeze (cos_rows, third)
sin = Unsqueeze (sin_rows, third)
"""

_TURNED = """
$_a_cos = Mul ($_a, cos)
$_b_sin = Mul ($_b, sin)
$_b_cos = Mul ($_b, cos)
$_a_sin = Mul ($_a, sin)
$_first = Sub ($_a_cos, $_b_sin)
$_second = Add ($_b_cos, $_a_sin)
$_passes = Slice (@of, turning_width, all_width, last)
"""

_HALVES = f"""
$_a = Slice (@of, none, half, last)
$_b = Slice (@of, half, turning_width, last)
{_TURNED}
turned_$ = Concat <axis = -1> ($_first, $_second, $_passes)
"""

_PAIRS = f"""
two = Constant <value_ints = [2]> ()
$_a = Slice (@of, none, turning_width, last, two)
$_b = Slice (@of, single, turning_width, last, two)
{_TURNED}
$_firsts = Unsqueeze ($_first, last)
$_seconds = Unsqueeze ($_second, last)
$_pairs = Concat <axis = -1> ($_firsts, $_seconds)
$_sizes = Shape <start = 0, end = 3> (@of)
$_flat = Concat <axis = 0> ($_sizes, turning_width)
$_joined = Reshape ($_pairs, $_flat)
turned_$ = Concat <axis = -1> ($_joined, $_passes)
""".replace("two", "$_two")

# new keys and values stand behind those of their own text, in a buffer that may be longer than the text
_JOINED = """
new_key = Transpose <perm = [0, 2, 1, 3]> (turned_key)
new_value = Transpose <perm = [0, 2, 1, 3]> (values)
all_keys = Concat <axis = 2> (past_key, new_key)
all_values = Concat <axis = 2> (past_value, new_value)
total = Cast <to = 7> (total_sequence_length)
totals = Reshape (total, single)
room = Max (totals, past)
rooms = Squeeze (room)
places = Range (zero, rooms, one)
since = Sub (places, before)
moved = Add (since, past)
is_old = Less (since, zero)
is_behind = GreaterOrEqual (since, news)
is_kept = Or (is_old, is_behind)
source = Where (is_kept, places, moved)
source_axes = Constant <value_ints = [1, 3]> ()
source_rows = Unsqueeze (source, source_axes)
present_shape = Concat <axis = 0> (batch, some_groups, room, width)
index = Expand (source_rows, present_shape)
present_key = GatherElements <axis = 2> (all_keys, index)
present_value = GatherElements <axis = 2> (all_values, index)
"""

_SCORES = """
by_group = Concat <axis = 0> (batch, new, some_groups, each, width)
grouped = Reshape (turned_query, by_group)
asking = Transpose <perm = [0, 2, 3, 1, 4]> (grouped)
lying = Transpose <perm = [0, 1, 3, 2]> (present_key)
answering = Unsqueeze (lying, third)
products = MatMul (asking, answering)
factors = CastLike (factor, products)
scores = Mul (products, factors)
"""

_SOFTCAP = """
said_cap = Constant <value_float: float = @softcap> ()
cap_zero = Constant <value_float = 0.0> ()
cap_one = Constant <value_float = 1.0> ()
is_capped = Greater (said_cap, cap_zero)
some_cap = Where (is_capped, said_cap, cap_one)
cap = CastLike (some_cap, scores)
small = Div (scores, cap)
bent = Tanh (small)
large = Mul (bent, cap)
capped = Where (is_capped, large, scores)
"""

# a token sees its text up to itself, no farther back than the window
_MASK = """
end_column = Unsqueeze (ends, third)
is_past = LessOrEqual (places, end_column)
first_seen = Sub (end_column, window)
is_near = Greater (places, first_seen)
is_open = LessOrEqual (window, zero)
is_seen = Or (is_near, is_open)
seen = And (is_past, is_seen)
head_axes = Constant <value_ints = [1, 2]> ()
seen_heads = Unsqueeze (seen, head_axes)
infinite = Constant <value_float = -inf> ()
hidden = CastLike (infinite, scores)
masked = Where (seen_heads, capped, hidden)
"""

_SINKS = """
sink_shape = Concat <axis = 0> (single, some_groups, each, single, single)
sinks = Reshape (head_sink, sink_shape)
sink_sizes = Concat <axis = 0> (batch, some_groups, each, new, single)
sink_rows = Expand (sinks, sink_sizes)
with_sinks = Concat <axis = -1> (masked, sink_rows)
every_weight = Softmax <axis = -1> (with_sinks)
weights = Slice (every_weight, none, room, last)
"""

_OUTPUT = """
value_groups = Unsqueeze (present_value, third)
mixed = MatMul (weights, value_groups)
by_token = Transpose <perm = [0, 3, 1, 2, 4]> (mixed)
flat_rows = Concat <axis = 0> (batch, new, rest)
output = Reshape (by_token, flat_rows)
"""
