"""Every check of the project: `nox` runs them all, `nox -s onnx` one, `nox -l` lists them."""

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "ir", "onnx", "nnef", "eager", "language_models", "integration", "docs", "wheels"]
nox.options.reuse_existing_virtualenvs = True
os.environ["PIP_NO_COMPILE"] = "0"  # pip reads the option inverted: no bytecode of what is never imported
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of hundreds of processes compiles torch anew: 7 s, not 3

PACKAGES = ("ir", "onnx_backend", "nnef_backend", "eager_backend")
EXTRAS = ("vision_ops", "stablehlo_backend", "language_models", "batch_inference")  # installed only when wanted
TESTS = ("pytest", "pytest-xdist")
MODELS = ("torchvision", "timm", "transformers")


def install(session: nox.Session, *packages: str, extra: tuple[str, ...] = ()) -> None:
    """Packages of this repository and others, under the constraints; torch first, or a dependency picks another one."""
    session.install("-c", "constraints.txt", "torch", "numpy", "hatchling")
    # built here, for an environment to build in takes 3 s for each; what they need comes with their names
    session.install("--no-deps", "--no-build-isolation", *(f"./packages/{p}" for p in packages))
    session.install("-c", "constraints.txt", *("ir[cli]" if p == "ir" else p for p in packages), *extra)


def run_tests(session: nox.Session, *folders: str, dist: str = "load") -> None:
    """pytest on two processes of one thread each, from the root, so that tests/ is importable.

    `dist="loadfile"` keeps a file in one process, for files whose tests share what takes long to make.
    """
    spread = ("-n", "2", "--dist", dist, "--durations", "20")
    threads = {"OMP_NUM_THREADS": "1"}  # which the processes that tests start have too
    session.run("python", "-m", "pytest", *spread, "-m", "not slow", *folders, *session.posargs, env=threads)


def with_ray(session: nox.Session) -> tuple[str, ...]:
    """What a sweep needs that is to run over Ray: -- --ray ADDRESS."""
    return ("ray",) if "--ray" in session.posargs else ()


@nox.session
def ir(session: nox.Session) -> None:
    """The core alone."""
    install(session, "ir", extra=(*TESTS, "expecttest"))
    run_tests(session, "tests/ir")


@nox.session
def onnx(session: nox.Session) -> None:
    """The ONNX backend alone with the core."""
    install(session, "ir", "onnx_backend", extra=(*TESTS, "expecttest", "onnxscript"))
    run_tests(session, "tests/onnx")


@nox.session
def nnef(session: nox.Session) -> None:
    """The NNEF backend alone with the core."""
    install(session, "ir", "nnef_backend", extra=TESTS)
    run_tests(session, "tests/nnef")


@nox.session
def eager(session: nox.Session) -> None:
    """The eager backend alone with the core."""
    install(session, "ir", "eager_backend", extra=TESTS)
    run_tests(session, "tests/eager")


@nox.session
def language_models(session: nox.Session) -> None:
    """Checkpoints to folders that generate, beside transformers; -- -m "slow or not slow" is every family."""
    install(session, *PACKAGES, "language_models", extra=(*TESTS, "transformers", "onnxruntime-genai"))
    run_tests(session, "tests/language_models", dist="loadfile")


@nox.session
def batch_inference(session: nox.Session) -> None:
    """Ray, Spark and Dask on this machine, two workers each (Spark: apt-get install openjdk-17-jre-headless)."""
    engines = ("ray[data,serve]", "pyspark", "dask[dataframe,distributed]", "pyarrow", "pandas", "cloudpickle")
    install(session, *PACKAGES, "batch_inference", extra=(*TESTS, *MODELS, "expecttest", *engines))
    session.run("python", "-m", "pytest", "tests/batch_inference", *session.posargs)


@nox.session
def cuda(session: nox.Session) -> None:
    """The eager backend on a GPU; -- the index of a CUDA build of torch, where pip's own is not one."""
    index = ("--extra-index-url", session.posargs[0]) if session.posargs else ()
    session.install("-c", "constraints.txt", *index, "torch", "numpy")
    install(session, "ir", "eager_backend", extra=(*TESTS, *MODELS))
    session.run("python", "-m", "pytest", "-n", "auto", "tests/cuda")
    session.run("python", "-m", "benchmarks.eager_cuda", "--write")


@nox.session
def fake_cuda(session: nox.Session) -> None:
    """Every program on fake tensors of a GPU that is not there, into docs/fake-cuda.md; -- --part models: one part."""
    install(session, "ir", "eager_backend", extra=("pytest", "expecttest", *MODELS))
    session.run("python", "-m", "tests.fake_cuda.sweep", *(session.posargs or ["--write"]))


@nox.session
def stablehlo(session: nox.Session) -> None:
    """The StableHLO backend alone with the core, and IREE: slices; -- -m "slow or not slow" is every case and model."""
    install(session, "ir", "stablehlo_backend", extra=(*TESTS, *MODELS, "expecttest"))
    run_tests(session, "tests/stablehlo")
    files = ("structure", "refused_sizes", "counted_indices", "file_numbers", "pt2_verified")
    shared = [f"tests/integration/test_{name}.py" for name in files]
    session.run("python", "-m", "pytest", "-n", "2", *shared, "-k", "stablehlo")


@nox.session
def integration(session: nox.Session) -> None:
    """All packages together: models, custom ops on every target, structure, the command line."""
    install(session, *PACKAGES, extra=(*TESTS, *MODELS, "hypothesis", "ninja", "onnxruntime-extensions", "torchao"))
    run_tests(session, "tests/integration")


@nox.session
def debug(session: nox.Session) -> None:
    """Faults planted in whole models, found by `ir debug` and reduced by `ir reduce`, into docs/planted-faults.md."""
    install(session, *PACKAGES, extra=MODELS)
    session.run("python", "-m", "tests.planted_faults", *(session.posargs or ["--write"]))


@nox.session(venv_backend="none")
def versions(session: nox.Session) -> None:
    """The core, custom ops and 21 models on other versions of torch and Python, into docs/versions.md (an hour)."""
    session.run("python", "-m", "tests.versions", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and mypy."""
    install(session, *PACKAGES, extra=("ruff", "mypy", "onnxscript"))  # a class of ours has one of onnxscript's as base
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", "packages", "tests", "examples", "benchmarks", "noxfile.py")
    for package in (*PACKAGES, *EXTRAS):
        session.run("mypy", f"packages/{package}/src/{package}")
    surface = {"MYPYPATH": "packages/stablehlo_backend/src"}  # which is not installed here
    session.run("mypy", "--warn-unused-ignores", "tests/typed", env=surface)


@nox.session
def docs(session: nox.Session) -> None:
    """The code of the README, the tutorials and the pages runs, and they name only what exists."""
    install(session, *PACKAGES, extra=(*TESTS, "onnxscript", "ninja", "setuptools", "torchao", "transformers"))
    run_tests(session, "tests/docs")


@nox.session
def browser(session: nox.Session) -> None:
    """The page of `ir show --html` in Debian's Chromium (apt-get install chromium), and its screenshot into docs/."""
    install(session, *PACKAGES, extra=("pytest", "playwright"))
    session.run("python", "-m", "pytest", "tests/browser", *session.posargs)
    session.run("python", "-m", "tests.browser.test_page")


@nox.session
def site(session: nox.Session) -> None:
    """The pages as a site in build/site, a warning is an error; -- serve shows it while you write."""
    session.install("mkdocs-material", "mkdocstrings[python]")
    source = Path("build", "site_source")
    shutil.rmtree(source, ignore_errors=True)
    pages = shutil.ignore_patterns("__pycache__", "*.py[co]")
    for folder in ("docs", "benchmarks", "examples"):
        shutil.copytree(folder, source / folder, ignore=pages)
    for page in ("README.md", "DESIGN.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(page, source / page)
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session
def wheels(session: nox.Session) -> None:
    """Wheels and sdists of all packages into dist/, the same at each build, installed from there and tried.

    `-- --homepage URL` for a release: the address stands in their metadata.
    """
    dist = Path("dist")
    shutil.rmtree(dist, ignore_errors=True)
    session.install("build", "hatchling", "twine")
    session.run("python", "tests/wheels_build.py", str(dist), *PACKAGES, *EXTRAS, *session.posargs)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    session.install("-c", "constraints.txt", "torch", "numpy")
    session.install("-c", "constraints.txt", "--find-links", str(dist), "ir==1.0.0", "onnx_backend==1.0.0")
    session.run("python", "-I", "tests/wheels_smoke.py")  # -I: tests/ir must not stand before ir
    session.install("-c", "constraints.txt", "--find-links", str(dist), "ir[all]==1.0.0", *MODELS)
    session.run("python", "-I", "tests/wheels_command_line.py")


@nox.session
def vision(session: nox.Session) -> None:
    """vision_ops against torchvision's compiled kernels: 5 GB of wheels, for the CPU's do not load them."""
    session.install("-c", "constraints.txt", "torch===2.13.0", "torchvision===0.28.0", "numpy")
    install(session, *PACKAGES, "vision_ops", extra=TESTS)
    run_tests(session, "tests/vision")


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that take minutes, which the sessions of the packages leave out: whole models, every opset, opcheck."""
    more = ("expecttest", "hypothesis", "ninja", "setuptools", "onnxscript", "torchao")
    install(session, *PACKAGES, extra=(*TESTS, *MODELS, *more))
    others = (
        *(f"--ignore=tests/{backend}/test_cases.py" for backend in ("onnx", "nnef", "eager")),
        "--ignore=tests/vision",
        "--ignore=tests/stablehlo",
        "--ignore=tests/language_models",
        "--ignore=tests/batch_inference",
    )  # which other sessions run whole
    session.run("python", "-m", "pytest", "-m", "slow", "tests", *others, *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """The whole zoo at full size on every target beside torch.onnx, into docs/models.md (-- --resume goes on)."""
    install(session, *PACKAGES, extra=(*MODELS, "onnxscript", *with_ray(session)))
    session.run("python", "-m", "tests.zoo.sweep", "--peer", *session.posargs)


@nox.session
def opinfo(session: nox.Session) -> None:
    """torch's operator database: all sweeps on ONNX, one on NNEF and StableHLO, bits on eager; into docs/ (minutes)."""
    install(session, *PACKAGES, "stablehlo_backend", extra=("expecttest", "pytest", *with_ray(session)))
    for arguments in (["--target", "onnx", "--all"], ["--target", "nnef"], ["--target", "stablehlo"]):
        session.run("python", "-m", "tests.opinfo", *arguments, "--write", *session.posargs, success_codes=[0, 1])
    session.run("python", "-m", "tests.eager.opinfo_page", success_codes=[0, 1])


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random programs on every target beside torch: -- --count 500 --seed 7 (5,000 take about an hour)."""
    install(session, *PACKAGES, extra=with_ray(session))
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session
def refused_sizes(session: nox.Session) -> None:
    """Sizes that torch refuses and a target computes for, of every case (7 minutes a half): -- --part 0/2."""
    install(session, *PACKAGES)
    session.run("python", "-m", "tests.refused_sizes", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Damaged and hostile files of every kind that is read: -- --kind archives --count 500 --seed 7 --write."""
    install(session, *PACKAGES)
    session.run("python", "-m", "tests.fuzz.mutants", *session.posargs)


@nox.session
def planted(session: nox.Session) -> None:
    """Bugs planted in a copy of the packages, each of which a test must notice (minutes)."""
    install(session, *PACKAGES, extra=TESTS)
    session.run("python", "-m", "tests.planted_bugs", *session.posargs)


IN_TRACT = {"nnef": "torch_to_nnef", "language_models_tract": "torch_to_nnef_llm"}  # benchmarks beside torch-to-nnef


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Export time, run time and memory beside the peers', into benchmarks/ (minutes); -- nnef: beside torch-to-nnef.

    -- language_models_tract: beside its export of language models.
    """
    install(session, *PACKAGES, extra=(*MODELS, "onnxscript"))
    which = session.posargs[0] if session.posargs else ""
    if which not in IN_TRACT:
        session.run("python", "-m", "benchmarks")
        session.run("python", "-m", "benchmarks.eager", "--write", *session.posargs)
        session.run("python", "-m", "benchmarks.pt2", "--write", *session.posargs)
        session.run("python", "-m", "benchmarks.scaling", "--write")
        return
    peer = Path(session.create_tmp(), which).resolve()
    pip = [str(peer / "bin" / "pip"), "install", "-q", "-c", "constraints.txt"]
    if not peer.exists():
        session.run("python", "-m", "venv", str(peer))
    session.run(*pip, "torch", "numpy", external=True)  # first, as in `install`
    session.run(*pip, f"{IN_TRACT[which]}==0.24.12", "tract", "timm", "transformers", external=True)
    session.run(*pip, "--no-deps", "torchvision", external=True)
    if which == "language_models_tract":  # it does not take a newer one
        session.run(*pip[:3], "transformers==5.14.1", external=True)
    session.run("python", "-m", f"benchmarks.{which}", "--peer", str(peer / "bin" / "python"), "--write",
                *session.posargs[1:])  # fmt: skip
