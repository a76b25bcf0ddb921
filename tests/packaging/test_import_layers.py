"""Hazard: layers that grow into each other, and an import that grows slow."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest
import upsweep
from helpers import run_python

PACKAGE = Path(upsweep.__file__).parent
CHECKOUT = Path(__file__).parents[2]

# The layers from the lowest to the highest. A file imports its own folder and those on earlier lines of this list.
# Folders of one line do not import each other. What is not listed, the package itself and its command line, may
# import everything.
LAYERS = [
    {"_utils", "testing"},
    {"_arrays", "_compiler"},
    {"_core", "reference"},
    {"_backends"},
    {"_user_scan"},
    {"scans", "bincounts", "histograms", "cluster", "user_scan", "te", "config"},
    {"_torch", "aggregates", "filters", "compat", "pairs"},
    {"blockwise", "_dask", "distributed", "pykeops", "weighted_windows"},
]
ARRAY_LIBRARIES = {"torch": {"_torch", "distributed"}, "cupy": set(), "dask": {"_dask"}}  # who may import each
ABOVE = {"__init__", "__main__", "bench", "demo", "selftest", "torch_ops"}
ABOVE |= {"counts", "streams", "carries", "peer_names"}
COMPARE = {"bench", "demo"}  # with other libraries


def files():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Absolute dotted names of all that a file imports, wherever in it."""
    parts = ("upsweep", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def exists(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def module_name(path):
    return ".".join(("upsweep", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def targets(path, modules):
    """The modules of the package that a file imports: of ``from a import b`` a.b where that is one, else a."""
    for name in imports(path):
        base = name.rpartition(".")[0]
        if name in modules or base in modules:
            yield name if name in modules else base


def layers_used(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("upsweep.") and name.count(".")}


def test_there_is_something_to_walk():
    assert {layer(path) for path in files()} - ABOVE == set().union(*LAYERS)
    assert layers_used(PACKAGE / "scans.py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    below = set()
    for names in LAYERS:
        if layer(path) in names:
            assert {name for name in layers_used(path) if exists(name)} <= below | {layer(path)}
        below |= names
    if layer(path) not in {"_torch", "_dask", "distributed"} | ABOVE:
        assert not layers_used(path) & {"_torch", "_dask"}, "use upsweep._arrays.dispatch.handlers"


def test_no_file_imports_itself_through_others():
    modules = {module_name(path): path for path in files()}
    graph = {name: set(targets(path, modules)) - {name} for name, path in modules.items()}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_array_libraries_are_imported_in_their_folders_only(path):
    imported = {name.split(".")[0] for name in imports(path)} & set(ARRAY_LIBRARIES)
    assert layer(path) in COMPARE or all(layer(path) in ARRAY_LIBRARIES[library] for library in imported)


def test_the_core_imports_nothing_of_the_package():
    sources = [*(CHECKOUT / "src").rglob("*.pyx"), *(CHECKOUT / "src").rglob("*.pxd")]
    assert sources
    for path in sources:
        for line in path.read_text().splitlines():
            words = line.split()
            assert not (words[:1] in (["from"], ["import"], ["cimport"]) and words[1].startswith("upsweep")), line


def test_the_import_brings_no_other_library():
    code = """
    import sys, numpy
    before = set(sys.modules)
    import upsweep
    assert "importlib.metadata" not in set(sys.modules) - before  # 20 ms of the import
    home = upsweep.__file__.rpartition("/")[0]
    new = [sys.modules[name] for name in set(sys.modules) - before if "." not in name]
    strangers = [m.__name__ for m in new if not (getattr(m, "__file__", None) or "").startswith(home)]
    print("upsweep", *(name for name in strangers if name not in sys.stdlib_module_names))
    """
    brought = [name for name in run_python(code).split() if not name.startswith(("_cython", "cython"))]
    assert brought == ["upsweep"]


def test_the_import_costs_at_most_30_milliseconds_more_than_numpys(tmp_path):
    code = """
    import time, numpy
    begin = time.process_time()
    import upsweep
    print(1e3 * (time.process_time() - begin))
    """
    # The fastest of several, in time of the processor: a busy machine adds to it, never takes away. The first one
    # compiles the sources where the installation has not, and keeps that.
    bytecode_cache = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    assert any(float(run_python(code, **bytecode_cache)) <= 30 for _ in range(30))


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()
    assert sys.modules["upsweep"].__all__
    for name in upsweep.__all__:
        assert hasattr(upsweep, name)
