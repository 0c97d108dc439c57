"""How a session of onnxruntime is opened: what the caller asks for, over what torch's numbers need."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from ir.errors import ExportError

Options: TypeAlias = Any  # onnxruntime.SessionOptions, or its attributes and config entries by name
Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"
CPU = "CPUExecutionProvider"
# Where onnxruntime would rather be fast: products with 4- and 8-bit weights in float32, not in int8 (level 4, its
# default); and on x86 without VNNI, int8 weights as uint8, whose products do not saturate in 16 bits.
EXACT = {"session.qdq_matmulnbits_accuracy_level": "1", "session.x64quantprecision": "1"}

# Where weights that a model refers to lie if not beside it, also for a model that is opened from its file.
WEIGHTS = "session.model_external_initializers_file_folder_path"


class Settings:
    """The options, providers and libraries of kernels of a session.

    Raises:
        ValueError: an option or a provider has no such name here.
        TypeError: an option takes no such value.
        ExportError: a library is not there, or onnxruntime does not load it.
    """

    def __init__(
        self,
        session_options: Options = None,
        providers: str | Sequence[Provider] | None = None,
        custom_op_libraries: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        one = isinstance(custom_op_libraries, (str, os.PathLike))
        libraries: Sequence[Any] = [custom_op_libraries] if one else list(custom_op_libraries)  # type: ignore[arg-type]
        self.libraries = [_library(place) for place in libraries]
        given = (CPU,) if providers is None else (providers,) if isinstance(providers, str) else providers
        self.providers = [p if isinstance(p, str) else (p[0], dict(p[1])) for p in given]
        self._given = session_options
        self._registered = False
        if providers is not None:
            _check_providers([p if isinstance(p, str) else p[0] for p in self.providers])
        if session_options is not None or self.libraries:
            with self.options():  # which tells what is wrong with them
                pass

    @contextmanager
    def options(self) -> Iterator[Any]:
        """onnxruntime's SessionOptions, for one session; a caller's own stay as they were, but for config entries."""
        import onnxruntime as ort

        own = isinstance(self._given, ort.SessionOptions)
        options = self._given if own else ort.SessionOptions()
        if not own:
            options.log_severity_level = 4  # an error is raised, and told there
        _set(options, {k: v for k, v in EXACT.items() if not _has(options, k)})
        if not own:
            _set(options, self._given or {})
        if not (own and self._registered):
            for library in self.libraries:
                _register(options, library)
            self._registered = True
        before = options.enable_profiling, options.profile_file_prefix, options.intra_op_num_threads
        try:
            yield options
        finally:
            options.enable_profiling, options.profile_file_prefix, options.intra_op_num_threads = before

    @property
    def fresh(self) -> bool:
        """Whether each session has options of its own, to which files may be lent."""
        return self._given is None or isinstance(self._given, Mapping)

    @property
    def weights_entry(self) -> Mapping[str, str]:
        """The config entry that names the folder of the weights, where there is one."""
        return (
            {WEIGHTS: str(self._given[WEIGHTS])} if isinstance(self._given, Mapping) and WEIGHTS in self._given else {}
        )

    def session(self, source: Any, options: Any) -> Any:
        """A session of a file or of the bytes of a model."""
        import onnxruntime as ort

        return ort.InferenceSession(source, options, providers=self.providers)

    def usage(self, path: Path) -> str:
        """The lines that open a file with these libraries, providers and weights."""
        providers = "" if self.providers == [CPU] else f", providers={self.providers!r}"
        lines = [f"options.register_custom_ops_library({str(place)!r})" for place in self.libraries]
        if isinstance(self._given, Mapping) and WEIGHTS in self._given:
            lines.append(f"options.add_session_config_entry({WEIGHTS!r}, {self._given[WEIGHTS]!r})")
        if not lines:
            return f"onnxruntime.InferenceSession({str(path)!r}{providers})"
        last = f"onnxruntime.InferenceSession({str(path)!r}, options{providers})"
        return "\n".join(["options = onnxruntime.SessionOptions()", *lines, last])

    def hint(self, error: BaseException) -> str:
        """What to do where onnxruntime lacks a kernel or weights, to be put behind what it says."""
        text = str(error)
        if "External data path" in text:
            return "; if its weights lie in another folder, name that by external_data='reference' and weights_folder="
        foreign = ("is not a registered function/op", "No opset import for domain", "Could not find an implementation")
        if self.libraries or not any(t in text for t in foreign):
            return ""
        return "; if the op has a kernel in a library of its own, give custom_op_libraries=['libkernels.so']"

    def __getstate__(self) -> dict[str, Any]:
        if not self.fresh:
            raise TypeError(
                "a program is pickled and copied with its session_options=, and onnxruntime.SessionOptions cannot be: "
                'give a dict, {"intra_op_num_threads": 1, "session.use_env_allocators": "1"}'
            )
        return self.__dict__


def with_weights(given: Options, folder: Path) -> Options:
    """The options with the folder that weights lie in; those of a caller's own SessionOptions are set there.

    Raises:
        ExportError: onnxruntime takes such a folder for models in memory alone.
    """
    import onnxruntime as ort

    if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 28):
        raise ExportError(
            f"weights_folder= needs onnxruntime 1.28 or newer, and this is {ort.__version__}: write the model into the "
            "folder of its weights"
        )
    entry = {WEIGHTS: str(folder)}
    if given is None or isinstance(given, Mapping):
        return {**(given or {}), **entry}
    _set(given, entry)
    return given


def _set(options: Any, wanted: Any) -> None:
    """Attributes by their names; keys with a dot are config entries."""
    if not isinstance(wanted, Mapping):
        raise TypeError(
            f"session_options={wanted!r:.60}: give an onnxruntime.SessionOptions, or a dict of its attributes and "
            'config entries such as {"intra_op_num_threads": 1}'
        )
    known = [n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n, None))]
    for key, value in wanted.items():
        if "." in str(key):
            options.add_session_config_entry(key, str(value))
            continue
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"session_options: onnxruntime has no option {key!r:.60}{hint}; there are {', '.join(known)}, and "
                "config entries, whose names have a dot"
            )
        try:
            setattr(options, key, _enumerated(getattr(options, key), value))
        except TypeError as error:
            kind = type(getattr(options, key))
            names = ", ".join(getattr(kind, "__members__", ())) or kind.__name__
            raise TypeError(f"session_options: {key}={value!r:.60} is none of {names}") from error


def _enumerated(current: Any, value: Any) -> Any:
    """A member of an enumeration by its name, as a command line or a file of settings gives it."""
    members = getattr(type(current), "__members__", {})
    return members.get(value, value) if isinstance(value, str) else value


def _has(options: Any, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True


def _check_providers(names: Sequence[str]) -> None:
    import onnxruntime as ort

    here = ort.get_available_providers()
    for name in names:
        if name in here:
            continue
        if name in ort.get_all_providers():
            way = "install a build of onnxruntime that has it, such as onnxruntime-gpu for CUDAExecutionProvider"
        else:
            near = difflib.get_close_matches(str(name), ort.get_all_providers(), 1)
            way = f"did you mean {near[0]}?" if near else "no build of onnxruntime has one of that name"
        raise ValueError(f"providers: {name!r:.60} is not here, but {', '.join(here)}; {way}")
    if not names:
        raise ValueError(f"providers=[] leaves nothing to compute with: leave it out, or give [{CPU!r}]")


def _library(place: str | os.PathLike[str]) -> Path:
    path = Path(place).absolute()
    if not path.is_file():
        raise ExportError(f"custom_op_libraries: there is no file {place!s:.300}; give the path of the shared library")
    return path


def _register(options: Any, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:
        why = str(error).rpartition(" : ")[2]
        raise ExportError(
            f"custom_op_libraries: onnxruntime does not load {library}, which has to export RegisterCustomOps: "
            f"{why:.300}"
        ) from error
