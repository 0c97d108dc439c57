"""The compiled program: a generated function, the tensors it refers to, and how it is called."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import devices
from eager_backend.building.constants import Constants
from eager_backend.building.plan import Plan
from eager_backend.building.source import rebound
from eager_backend.inspection import layers, profiling
from eager_backend.runtime import captured, state
from eager_backend.runtime.counts import unpacked
from eager_backend.runtime.cuda_graphs import CapturedProgram
from eager_backend.runtime.kernels import without_kernel
from ir.conditions import sizes_of, small
from ir.debug import Table
from ir.errors import ExportError
from ir.importer.torch_api import BelowAutograd, set_grad_enabled
from ir.opened import Timed
from ir.words import counted

_inference = torch.is_inference_mode_enabled
_enabled = torch.is_grad_enabled


class Program:
    """Call it with one tensor for each input of the graph; the results come back in the order of `graph.results`.

    A call keeps all of its state in locals, so that any number of threads may share one program; where the model
    writes to its buffers they need a lock, as with the module, or a `clone` each.
    """

    def __init__(self, plan: Plan, run: FunctionType, constants: Constants) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.source = plan.source.text
        self.device = plan.device
        self.run = run  # the bare function: no guard around it, for callers that are in inference mode anyway
        self.constants = constants
        devices.settled(plan.device)
        self._unread: dict[str, Tensor] | None = None
        self._loading = threading.Lock()

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The model's own tensors by their names in the source."""
        return self.constants.weights

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results, as ordinary tensors without a gradient; inference tensors in inference mode."""
        try:
            if _inference():
                return self.run(*inputs)  # type: ignore[no-any-return]
            # no_grad alone would still pass through the autograd kernels, a tenth of the time of a small op
            before = _enabled()
            set_grad_enabled(False)
            try:
                with BelowAutograd():
                    return self.run(*inputs)  # type: ignore[no-any-return]
            finally:
                set_grad_enabled(before)
        except captured.OtherRank as reason:
            return captured.run(self, inputs, reason)
        except ExportError:
            raise
        except (ArithmeticError, TypeError) as error:
            captured.look_again(self.graph, inputs, error)
            raise
        except (IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, ValueError):
                captured.look_again(self.graph, inputs, error)
            if told := unpacked(error):
                raise told from error
            if told := without_kernel(error, self.plan.target.dtype, self.run):  # type: ignore[attr-defined]
                raise told from error
            if small(sizes_of(self.graph, inputs)):  # a kernel of the graph's refuses what the model's own takes
                return captured.run(self, inputs, error)
            raise

    def capture(self, *example_inputs: Tensor) -> CapturedProgram:
        """The program as CUDA graphs, captured for the shapes of these inputs now and for others when they come.

        Raises:
            ExportError: the program is not on a GPU, writes to its inputs, or has steps that wait for the GPU.
        """
        captured = CapturedProgram(self, self.device)
        captured(*example_inputs)
        return captured

    # -- state -----------------------------------------------------------------------------------------------------

    def clone(self) -> Program:
        """Another program over the same code and the same weights, with buffers of its own where the model writes."""
        return self._with_buffers({s.name: self.weights[s.name] for s in self.constants.written})

    def stateless(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """A call that finds the model's buffers as they were captured, and leaves the program's as they are."""
        return self._with_buffers(self.constants.captured)(*inputs)

    def _with_buffers(self, buffers: Mapping[str, Tensor]) -> Program:
        own = {n: state.taken(t, self.weights[n], False) for n, t in buffers.items()}
        constants = self.constants.replaced(own)
        other = Program(self.plan, rebound(self.run, constants.globals), constants)
        other._unread = None if self._unread is None else dict(self._unread)
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """The program's tensors by the module's names, parameters first; those that it reads share its memory."""
        named, others = self._state()
        return {n: others[n] if place is None else self.weights[place].detach() for n, place in named.items()}

    def load_state_dict(self, given: Mapping[str, Any], strict: bool = True, assign: bool = False) -> state.Keys:
        """Take in new weights and buffers; nothing is compiled again, and what passes made of weights is made anew.

        The new tensors are others than the old: the model keeps its own, and so does every clone. A call that runs
        meanwhile in another thread sees the old ones to its end, a call that starts later the new ones, no call a mix.

        Args:
            given: tensors by the module's names; they are moved and converted as those before were.
            strict: missing and unexpected names are an error.
            assign: use tensors that fit as they are, without a copy.

        Returns:
            The missing and the unexpected names.

        Raises:
            RuntimeError: as torch.nn.Module's, with its words; the program is as it was.
            ExportError: a weight was quantised into several tensors.
        """
        with self._loading:
            named, others = self._state()
            state.opened_subclasses(named, self.constants)
            keys = state.compare_keys("Program", self.state_dict(), given, strict)
            changes: dict[str, Tensor] = {}
            for name, place in named.items():
                if name in given and place is not None:
                    changes[place] = state.taken(given[name], self.weights[place], assign)
                elif name in given:
                    others = others | {name: state.taken(given[name], others[name], assign)}
            self._use(changes)
            self._unread = others
        return keys

    def refresh(self) -> None:
        """Take in new contents of `weights`: what was derived from them at load is computed again."""
        with self._loading:
            self._use(self.weights)

    def _use(self, changes: Mapping[str, Tensor]) -> None:
        constants = self.constants.replaced(changes)
        devices.settled(self.device)
        # one assignment: a call takes the function once, and with it every tensor
        self.constants, self.run = constants, rebound(self.run, constants.globals)

    def _state(self) -> tuple[dict[str, str | None], dict[str, Tensor]]:
        named = state.places(self.graph, self.constants)
        if self._unread is None:
            self._unread = state.unread(self.graph, named)
        return named, self._unread

    # -- looking inside --------------------------------------------------------------------------------------------

    def listing(self) -> str:
        """The program as text: every function with one line a step, and the tensors that its free names are."""
        weights = [f"# {n} = {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for n, t in self.weights.items()]
        derived = [f"# {', '.join(r.names)} = {r}" for r in self.constants.recipes]
        return "\n".join([*weights, *derived, "", self.source]).lstrip("\n")

    def profile(self, *inputs: Tensor, runs: int = 20) -> profiling.Profile:
        """Where the time goes: every step over `runs` calls, after one that is not counted.

        Buffers and inputs are left as they are. On a GPU times are those between CUDA events.
        """
        return profiling.profile(self, inputs, runs)

    def timed(self, inputs: Sequence[Tensor], runs: int) -> list[Timed]:
        """The time of each step in one call, the median over `runs`."""
        return [Timed(r.name.partition(",")[0], r.call, r.seconds) for r in self.profile(*inputs, runs=runs).nodes]

    def trace(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Copies of all intermediate values of one call, by their names in the graph; buffers are left as they are.

        What passes fused away or computed at load is not among them, nor what lies inside of branches, loops and the
        bodies of custom ops.
        """
        return layers.trace(self, inputs)

    def check(self, *inputs: Tensor, max_error: float | None = None) -> Table:
        """The table of nodes, as `ir.debug` gives it, of this program with its weights and buffers as they are now.

        The error in the whole program is that of `trace`: passes leave some values out. A program made with
        optimize=False is to have torch's bits there. A node alone is compared to rounding (as `ir.Exported.verify`),
        for torch's kernels round by where operands lie. `max_error` asks otherwise of both, in units of each result's
        largest magnitude. Buffers are left as they are.
        """
        return layers.check(self, inputs, max_error)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an eager program holds compiled code, so it is neither pickled nor copied: clone() gives another one over "
            "the same weights, and save() of what ir.export returned a .pt2 file that ir.export takes"
        )

    def __repr__(self) -> str:
        return f"<eager program of {counted(len(self.graph.nodes), 'node')}>"
