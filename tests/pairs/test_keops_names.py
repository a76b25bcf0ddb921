"""Hazard: a script of KeOps' that changes its import and meets another name, order of arguments or default."""

import inspect

import pytest
import upsweep
from helpers import run_python
from upsweep import Genred, KernelSolve, LazyTensor, cluster

METHODS = {
    "": "dim abs exp log xlogx sin cos asin acos atan sinxdivx sinc sqrt rsqrt square sign step relu sqnorm2 "
    "norm2 normalize t auto_factorize",
    "D": "one_hot",
    "i": "elem",
    "i, d": "extract",
    "v": "matvec rmatvec",
    "dim=None, axis=None, p=2": "norm",  # of KeOps, "dim": np.linalg.norm names it axis
    "var": "divergence laplacian",
    "other": "atan2 power sqdist weightedsqnorm difference_matrix concat matvecmult vecmatmult tensorprod "
    "grad_matrix factorize",
    "other=0": "round",
    "other, gradin": "grad",
    "other, diffin": "diff",
    "other, gamma": "softdtw_sqdist",
    "other1, other2": "ifelse",
    "other1=None, other2=None, min=None, max=None": "clamp",  # min and max as torch's
    "other, dimfself, dimfother": "keops_kron",
    "other, dimfa, dimfb, contfa, contfb, *args": "keops_tensordot",
    "other, var=None, call=True, **kwargs": "solve",
    "g, s": "weightedsqdist",
    "x, k=0": "bspline",
    "modulus, offset=0": "mod",
    "tuple_of_lt, axis=-1": "concatenate",
    "tuple_of_lt, dim=-1": "cat",
    "axis=-1, dim=None, **kwargs": "sum min max argmin argmax",
    "axis=None, dim=None, **kwargs": "sum_reduction min_reduction max_reduction argmin_reduction argmax_reduction "
    "min_argmin max_argmax",
    "K, axis=None, dim=None, **kwargs": "Kmin argKmin Kmin_argKmin",
    "axis=None, dim=None, weight=None, **kwargs": "logsumexp",
    "weight, axis=None, dim=None, **kwargs": "sumsoftmaxweight",
    "**kwargs": "logsumexp_reduction sumsoftmaxweight_reduction min_argmin_reduction max_argmax_reduction "
    "Kmin_reduction argKmin_reduction Kmin_argKmin_reduction",
    "reduction_op, other=None, opt_arg=None, axis=None, dim=None, call=True, **kwargs": "reduction",
}
OF_FORMULAS = (
    "dtype_acc='auto', use_double_acc=False, sum_scheme='auto', enable_chunks=True, rec_multVar_highdim={}, "
    "use_fast_math=True"
)
FUNCTIONS = {
    LazyTensor.__init__: "x, axis=None",
    Genred.__init__: "formula, aliases, reduction_op='Sum', axis=0, dtype=None, opt_arg=None, formula2=None, "
    "cuda_type=None, " + OF_FORMULAS.format(False),
    Genred.__call__: "*args, backend='auto', device_id=-1, ranges=None, out=None",
    KernelSolve.__init__: "formula, aliases, varinvalias, axis=0, dtype=None, opt_arg=None, "
    + OF_FORMULAS.format(None)
    + ", cuda_type=None",
    KernelSolve.__call__: "*args, backend='auto', device_id=-1, alpha=1e-10, eps=1e-06, ranges=None",
    **dict.fromkeys((upsweep.Vi, upsweep.Vj, upsweep.Pm), "x_or_ind, dim=None"),
    **dict.fromkeys(
        (upsweep.generic_sum, upsweep.generic_logsumexp, upsweep.generic_argmin, upsweep.generic_argkmin),
        "formula, output, *aliases, **kwargs",
    ),
    cluster.grid_cluster: "x, size",
    cluster.sort_clusters: "x, lab",
    cluster.cluster_ranges: "lab, Nlab=None",
    cluster.cluster_centroids: "x, lab, Nlab=None, weights=None, weights_c=None",
    cluster.cluster_ranges_centroids: "x, lab, weights=None, min_weight=None",
    cluster.from_matrix: "ranges_i, ranges_j, keep",
    cluster.swap_axes: "ranges",
}


def written(function):
    """The arguments of a function as text, without annotations."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]
    return ", ".join(map(str, parameters))


@pytest.mark.parametrize("arguments", METHODS)
def test_methods_of_lazy_tensors(arguments):
    for name in METHODS[arguments].split():
        assert written(getattr(LazyTensor, name)) == arguments, name


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_functions_begin_with_the_same_arguments(function):
    """Those that KeOps has not come behind, by keyword."""
    own = written(function)
    if own != FUNCTIONS[function]:
        kinds = inspect.signature(function).parameters
        more = [
            name
            for name in kinds
            if name in ("n_threads", "max_iterations", "return_permutation", "check", "precision")
        ]
        assert more and all(kinds[name].kind is inspect.Parameter.KEYWORD_ONLY for name in more)
        assert own.startswith(FUNCTIONS[function] + ", ")


def test_packages_that_import_pykeops():
    printed = run_python("""
        import numpy as np, upsweep.pykeops
        upsweep.pykeops.install()
        import pykeops, pykeops.config
        from pykeops.numpy import LazyTensor, Vi
        from pykeops.torch.cluster import cluster_ranges_centroids
        from pykeops.torch.operations import KernelSolve
        pykeops.set_verbose(False)
        pykeops.clean_pykeops()
        pykeops.set_build_folder()
        pykeops.test_numpy_bindings()
        print(pykeops.config.gpu_available in (False, True), pykeops.get_build_folder() is not None)
        print(LazyTensor is upsweep.LazyTensor, KernelSolve is upsweep.KernelSolve, pykeops.torch.Vi is Vi)
        ranges, _, _ = cluster_ranges_centroids(np.zeros((3, 1)), np.array([0, 1, 0]))  # in KeOps' usual order
        print(ranges.tolist())
    """)
    assert printed.splitlines() == [
        "formulas of numpy arrays work", "True True", "True True True", "[[0, 2], [2, 3]]",
    ]  # fmt: skip


def test_scripts_that_import_from_modules_of_keops():
    printed = run_python("""
        import upsweep.pykeops as pykeops
        pykeops.set_verbose(False)
        from upsweep.pykeops.numpy import Genred, KernelSolve, LazyTensor, Pm, Vi, Vj
        from upsweep.pykeops.numpy.cluster import grid_cluster
        from upsweep.pykeops.torch import LazyTensor as OfTensors
        from upsweep.pykeops.torch.cluster import sort_clusters
        import sys, upsweep, upsweep.pykeops.torch
        print(LazyTensor is OfTensors is upsweep.LazyTensor, Genred is upsweep.Genred)
        from upsweep.pykeops.numpy.utils import IsGpuAvailable
        print(grid_cluster is upsweep.cluster.grid_cluster, "pykeops" in sys.modules, "torch" in sys.modules)
        print(IsGpuAvailable() == pykeops.config.gpu_available, hasattr(pykeops.numpy, "TraceOperator"))
        try:
            from upsweep.pykeops.numpy import ComplexLazyTensor
        except ImportError as error:
            print(error)
    """)
    assert printed.splitlines() == [
        "True True", "True False False", "True False",
        "module 'upsweep.pykeops.numpy' has no attribute 'ComplexLazyTensor': write real and imaginary parts of "
        "complex arrays as two formulas",
    ]  # fmt: skip


def test_keops_itself_is_not_replaced():
    printed = run_python("""
        import sys, types
        sys.modules["pykeops"] = types.ModuleType("pykeops")
        import upsweep.pykeops
        try:
            upsweep.pykeops.install()
        except RuntimeError as error:
            print(error)
    """)
    assert printed.startswith("pykeops: is imported already")
