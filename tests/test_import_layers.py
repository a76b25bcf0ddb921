"""Hazard: layers that grow into each other, and an import that grows slow."""

import ast
import sys
from pathlib import Path

import pytest
import upsweep
from helpers import run_python

PACKAGE = Path(upsweep.__file__).parent
CHECKOUT = Path(__file__).parents[1]

# What each file of the design's layers may import of the package: what is below it. Files that are not
# listed stand above all of these. Scans and counts have a fast path that goes straight to the CPU; only
# _dispatch knows both backends, and what it is built of the one for devices. The tasks of a dask array's graph
# call the public function again, on blocks: _dask stands beside the public functions, which hand it themselves.
# Of updates and formulas, traced once, they call what the public functions call.
# fmt: off
MAY_IMPORT = {
    "reference": {"_expr"},
    "testing": set(),
    "_cpu": {"_cpu", "_expr"},  # of which pairs are compiled, by who needs them
    "_cuda": {"_cuda", "_expr"},
    "_expr": {"_expr"},
    "_foreign": set(),
    "_lent": {"_foreign"},
    "_arrays": {"_foreign", "_lent"},
    "_signature": {"_arrays"},
    "_bins": {"_cpu"},
    "_counting": {"_signature", "_arrays"},
    "_at_home": {"_signature", "_arrays", "_cuda"},
    "_counts_at_home": {"_at_home", "_counting", "_signature", "_arrays", "_bins", "_cuda"},
    "_pairs_at_home": {"_at_home", "_arrays", "_cuda"},
    "_user_scans_at_home": {"_at_home", "_arrays", "_cuda", "_expr"},
    "_nests_at_home": {"_at_home", "_arrays", "_cuda"},
    "_dispatch": {
        "_at_home",
        "_counts_at_home",
        "_pairs_at_home",
        "_user_scans_at_home",
        "_nests_at_home",
        "_counting",
        "_signature",
        "_arrays",
        "_bins",
        "_cpu",
        "_cuda",
    },
    "_clusters": set(),
    "cluster": {"_clusters", "_arrays", "_torch"},
    "pairs": {"pairs", "_expr", "_arrays", "_dispatch", "_torch", "_dask", "counts"},
    "_torch": {
        "_torch",
        "_scan_problem",
        "_scan_plans",
        "_scan_gradient",
        "_expr",
        "_clusters",
        "_counting",
        "_signature",
        "_arrays",
        "_dispatch",
        "_cpu",
    },
    "_scan_problem": {"_arrays", "_dispatch", "_expr"},
    "_scan_plans": {"_scan_targets", "_scan_problem", "_arrays", "_dispatch", "_expr"},
    "_scan_gradient": {"_scan_problem", "_arrays", "_dispatch", "_expr"},
    "_scan_passes": {"_scan_problem", "_arrays", "_expr"},
    "_scan_carries": {"_scan_passes", "_scan_problem", "_arrays", "_expr"},
    "_scan_targets": {"_scan_problem", "_signature", "_arrays"},
    "user_scan": {
        "_scan_carries",
        "_scan_plans",
        "_scan_problem",
        "_scan_targets",
        "_scan_gradient",
        "_arrays",
        "_expr",
        "_torch",
        "_dask",
    },
    "filters": {"user_scan", "_scan_problem", "_arrays", "_dask"},
    "te": {"te", "_arrays", "_cpu", "_dispatch", "_expr", "_torch"},
    "_dask": {
        "_dask",
        "_counting",
        "_signature",
        "_arrays",
        "_dispatch",
        "_expr",
        "_scan_carries",
        "_scan_passes",
        "_scan_problem",
        "carries",
    },
    "scans": {"_signature", "_arrays", "_dispatch", "_cpu", "_torch", "_dask"},
    "counts": {"_counting", "_arrays", "_dispatch", "_cpu", "_torch", "_dask"},
    "_edges": {"_arrays", "_bins", "_dispatch"},
    "histograms": {"_signature", "_arrays", "_bins", "_edges", "_dispatch", "_torch", "_dask"},
    "carries": {"scans", "_signature", "_arrays", "_dispatch", "_torch"},
    "distributed": {"_torch", "counts"},
    "_scan_blocks": {"_scan_passes", "_scan_problem", "_arrays", "user_scan"},
    "streams": {"_scan_blocks", "carries", "scans", "_signature", "_arrays"},
    "config": {"_cpu", "_cuda", "_expr"},
}
# fmt: on
FOREIGN = {"torch", "cupy", "dask"}
MAY_NAME_FOREIGN = {
    "distributed",
    "_arrays",
    "_foreign",
    "_lent",
    "_torch",
    "_dask",
    "bench",
    "_bench",
    "demo",
    "_demo",
}


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


def layers_used(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("upsweep.") and name.count(".")}


def exists(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def test_there_is_something_to_walk():
    assert {"reference", "testing", "scans", "counts", "_dispatch"} <= {layer(path) for path in files()}
    assert layers_used(PACKAGE / "scans.py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_calls_go_downwards_only(path):
    used = {name for name in layers_used(path) if exists(name)}
    if layer(path) in MAY_IMPORT:
        # Small helpers of the lowest layer (numbers, names, errors) have a leading underscore and no imports.
        helpers = {name for name in used - set(MAY_IMPORT) if name.startswith("_")}
        assert all(
            not layers_used(PACKAGE / f"{name}.py") for name in helpers if (PACKAGE / f"{name}.py").exists()
        )
        assert used - helpers <= MAY_IMPORT[layer(path)]
    # config only tells which library there is
    if layer(path) not in ("_dispatch", "_cuda", "config") and not layer(path).endswith("_at_home"):
        assert "_cuda" not in used


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_adapters_know_array_libraries(path):
    if layer(path) not in MAY_NAME_FOREIGN:
        assert not {name.split(".")[0] for name in imports(path)} & FOREIGN


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
    kept = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    assert any(float(run_python(code, **kept)) <= 30 for _ in range(30))


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()
    assert sys.modules["upsweep"].__all__
    for name in upsweep.__all__:
        assert hasattr(upsweep, name)
