"""Hazard: a script of KeOps' that changes its import and meets another name, order of arguments or default."""

import inspect

import pytest
import upsweep
from upsweep import Genred, KernelSolve, LazyTensor, cluster

METHODS = {
    "": "dim abs exp log xlogx sin cos asin acos atan sinxdivx sinc sqrt rsqrt square sign step relu sqnorm2 "
    "norm2 normalize t auto_factorize",
    "D": "one_hot",
    "i": "elem",
    "i, d": "extract",
    "v": "matvec rmatvec",
    "dim": "norm",
    "var": "divergence laplacian",
    "other": "atan2 power sqdist weightedsqnorm difference_matrix concat matvecmult vecmatmult tensorprod "
    "grad_matrix factorize",
    "other=0": "round",
    "other, gradin": "grad",
    "other, diffin": "diff",
    "other, gamma": "softdtw_sqdist",
    "other1, other2": "clamp ifelse",
    "other, dimfself, dimfother": "keops_kron",
    "other, dimfa, dimfb, contfa, contfb, *args": "keops_tensordot",
    "other, var=None, call=True, **kwargs": "solve",
    "g, s": "weightedsqdist",
    "x, k=0": "bspline",
    "modulus, offset=0": "mod",
    "tuple_of_lt, axis=-1": "concatenate",
    "tuple_of_lt, dim": "cat",
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
    + OF_FORMULAS.format(None),
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
        more = [name for name in kinds if name in ("n_threads", "max_iterations", "return_permutation")]
        assert more and all(kinds[name].kind is inspect.Parameter.KEYWORD_ONLY for name in more)
        assert own.startswith(FUNCTIONS[function] + ", ")
