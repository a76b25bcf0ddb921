"""Tables of representative calls of the public functions, for ``call_digests.py``.

A call is a line of Python over the names in ``call_operands.py``, and the line is the name of the call. ``{a; b}``
makes two lines of a line, one with a and one with b. ``{dtype}`` makes one line for each line of
``SETS["dtype"]``, in all places of the line. An indented line continues the one before. The keys of `TABLES` are
places: numpy, torch, cuda (torch tensors there), dask. Sums that a device adds in no fixed order are of small
integers, which are exact.
"""

import importlib.util
import re
from collections.abc import Iterator

from block_updates import UPDATES

BFLOAT16 = "; bfloat16" if importlib.util.find_spec("ml_dtypes") else ""

# Tables whose lines go into others.
SETS = {
    "scan": "{cumulative_sum; discounted_cumsum; linear_recurrence}",
    "peer": "{discounted_cumsum_left; discounted_cumsum_right; pscan; scan_forward}",
    "dtype": "{float16; float32; float64; complex64; complex128; bool; int8; uint8; int16; int32; uint32; int64"
    "; uint64" + BFLOAT16 + "}",
    "float": "{float32; float64}",
    "layout": "{C; Fortran; steps; negative; zero; swapped; unaligned}",
    "size": "({0,; 1,; 7,; 4096,; 3, 0; 5, 300; 300001,; 20001, 3; 400, 1001})",
    "update": "\n".join(UPDATES),
    "reduction": "{sum(; min(; max(; argmin(; argmax(; min_argmin(; max_argmax(; logsumexp(; Kmin(3,; argKmin(3,}",
    "operation": """
(a * b).{abs; acos; asin; atan; cos; exp; floor; log; norm2; normalize; relu; rsqrt; sign; sin; sinc; sinxdivx}()
(a * b).{sqnorm2; sqrt; square; step; tanh; xlogx; auto_factorize}()
a.{atan2; concat; difference_matrix; sqdist; tensorprod; power; mod; weightedsqnorm}(b)
(2 - a) / (b + 1) - a**2 + (-b) ** 3 + a**0.5
(a < b) + (a >= 2 * b) + (a == b)
a | b
a[1:] * b[:2]
(a * b).{sum(-1); round(1)}
a.clamp(0.2, b)
(a - b).ifelse(a, 2 * b)
a.elem(1) * b.extract(0, 2)
(3 * a.elem(0)).one_hot(3) * b
a.concat(a).bspline(b.elem(0), 2)
LazyTensor.cat((a, b), -1)
a.tensorprod(b).matvecmult(b)
b.vecmatmult(a.tensorprod(b))
a.weightedsqdist(b, Pm(0.5))
a.softdtw_sqdist(b, 0.1)
a.keops_kron(b, [3], [3])
a.keops_tensordot(b, (3,), (3,), (0,), (0,))
a.sqdist(b){.exp().grad(a, 1); .laplacian(a)}
(a * a.sqdist(b)){.divergence(a); .diff(a, 2 * a)}
(a * a[0] * b).grad_matrix(a)
""",
    "body": """
te.{abs; acos; asin; atan; cos; exp; floor; log; rsqrt; sigmoid; sin; sqrt; tanh}(v)
te.select(te.any(te.all(v > 0, v < 1), te.logical_not(v != 2)), te.max(v, 0.25), -v)
te.cast('float64', v) * te.cast('int32', 3 * v)
te.power(te.abs(v), 1.5) * te.const(2, "float32")
te.if_then_else(v > 0, te.minimum(v, 2), te.maximum(v, -1) * te.min(v, 3))
""",
    "schedule": """
pass
s[update].{vectorize; parallel}(i)
s[update].{vectorize; unroll}(s[update].split(i, factor=8)[1])
s[update].bind(i, te.thread_axis("threadIdx.x"))
s[decayed].{compute_inline(); compute_at(s[update], i)}
s[s.cache_read(decayed, "local", [update])].compute_at(s[update], i)
""",
}  # fmt: skip

EVERYWHERE = """
run("{scan}", (3, 65), dtype="{dtype}")
run("{scan}", (3, 65), {reverse=True; exclusive=True; initial=new(3); reset=flags(3, 65)})
run("{scan}", (3, 65), n_threads={1; 2})
run("{scan}", (3, 65), return_final=True,
    {reverse=True; exclusive=True; axis=0, initial=new(65), reset=flags(3, 65)})
run("{scan}", (3, 65), reverse=True, exclusive=True, initial=new(3), reset=flags(3, 65), return_final=True)
run("{scan}", (3, 65), special={np.nan; np.inf}, reset=flags(3, 65))
upsweep.cumulative_sum(new(3, 65), {dtype=new(1, dtype="float64").dtype; include_initial=True, return_final=True})
run("discounted_cumsum", (3, 65), {window=5; window=100, reverse=True; window=1, axis=0})
upsweep.discounted_cumsum(new(3, 65), new(3, {1; 65}, seed=1))
upsweep.linear_recurrence(new(3, 1), new(3, 65))
run("{peer}", (3, 65), dtype="{float}")
run("scan_forward", (3, 65), reverse=True)
upsweep.PScan.apply(new(3, 65, seed=1), new(3, 65))
run("{scan}", {size}, n_threads={1; 2})
upsweep.scan(*UPDATES["{update}"], new(40, 5, dtype="{float}"), return_final=True)
upsweep.scan(*UPDATES["{update}"], new(3, 5000), axis=1, reverse=True)
str(upsweep.scan.explain(*UPDATES["{update}"], new({40, 5; 9000})))
with_threads({1; 2}, lambda: upsweep.scan(*UPDATES["{constant; two gated; max; tanh}"], new({100001; 50, 3000})))
upsweep.scan(lambda s, x: 0.9 * s + x, 0.5, new(40, 5, dtype="{dtype}"))
upsweep.scan(lambda s, _: s + 1.0, new(3), None, length=4, return_final=True)
upsweep.scan(lambda s, x: np.where(x > 0, s + 1, np.clip(s, -1, 1)), 0.0, new(40, 5))
upsweep.scan(lambda s, x: s | (x > 1.5), False, new(40, 5))
upsweep.scan(lambda s, x: 0.5 * s + upsweep.{sigmoid; silu; softplus}(x), 0.0, new(40, 5))
upsweep.{sigmoid; silu; softplus}(new(40, dtype="{float}"))
upsweep.logaddexp(new(40), 0.5)
upsweep.lfilter([0.5, *np.arange({1; 2; 4; 6}) / 8], [1.0, -0.5, 0.25{; , 0.1; , 0.1, 0.2, 0.1}],
    new(3, 200, dtype="{float}"))
upsweep.lfilter([0.5, 0.25], [1.0, -0.5], new(3, 200), zi=new(3, 1))
upsweep.ewm_{mean; sum}(new(3, 200, dtype="{float}", special=np.nan),
    {alpha=0.3; com=2, axis=0; span=5, ignore_na=True})
upsweep.ewm_{mean; sum}(new(3, 200, dtype="{float}"), halflife=2.5{; , times=np.cumsum(abs(data(200))).tolist()})
upsweep.ewm_mean(new(3, 200, dtype="{float}"), {alpha=0.3; com=2, axis=0; span=5, ignore_na=True}, adjust=False)
upsweep.bincount(new(500, dtype="{dtype}"))
upsweep.bincount(keys(500), whole(500, dtype="{dtype}"), 12)
upsweep.bincount(keys(500),
    {minlength=20; length=12; length=12, dtype=new(1, dtype="float32").dtype; deterministic=True})
upsweep.bincount(keys(3, 65), length=12, axis={0; 1})
upsweep.bincount(keys(500) - 1, length=8{; , invalid="drop"; , invalid="drop", return_invalid=True})
upsweep.bincount(keys(500), whole(500, 3), length=12)
upsweep.bincount(keys({0; 1; 300001}) * {1; 5000}, n_threads={1; 2})
upsweep.histogram(new(500, dtype="{dtype}"), 7, (0, 9))
upsweep.histogram(new(500), {; 3; "auto"; range=(-1.0, 1.0); [-2.0, -0.5, 0.0, 0.25, 3.0], density=True})
upsweep.histogram(new(500, dtype="{float}"), [-2.0, -0.5, 0.0, 0.25, 3.0], weights=whole(500))
upsweep.histogram(new(500, special=np.nan), 5, (-1.0, 1.0))
upsweep.histogram(new(300001, dtype="float64"), 100, n_threads={1; 2})
of_pairs(lambda a, b: ({operation}).sum(axis=1))
of_pairs(lambda a, b: a.sqdist(b).{reduction}axis={0; 1}), dtype="{float}")
of_pairs(lambda a, b: (a.sqdist(b).logsumexp(1, weight=b), a.sqdist(b).sumsoftmaxweight(b, 1)))
of_pairs(lambda a, b: (str((a * b).exp()), repr(a.sqdist(b))))
of_pairs(lambda a, b: (-Pm(0.7) * a.sqdist(b)).exp() @ points(29, 2))
((LazyTensor(points(2, 37, 1, 3)) - LazyTensor(points(2, 1, 29, 3))) ** 2).sum(-1).min(axis=2)
gaussian("Sum", {0; 1})(*gaussian_data(37, 29, "{float16; float32; float64}"))
gaussian("Sum", 1)(*gaussian_data({1, 1; 0, 5; 5, 0; 700, 900}, "float32"), n_threads={1; 2})
upsweep.generic_{sum; logsumexp; argmin}("SqDist(x, y)", "a = Vi(1)", "x = Vi(3)", "y = Vj(3)")(
    points(37, 3), points(29, 3))
upsweep.generic_argkmin("SqDist(x, y)", "a = Vi(2)", "x = Vi(3)", "y = Vj(3)")(points(37, 3), points(29, 3))
"""

# Not of dask arrays, which have no memory of their own, no carries and no conjugate gradients.
IN_MEMORY = """
run("{scan}", (3, 65), layout="{C; Fortran; steps}", axis={0; 1})
(out := new({3, 65; 3, 65, layout="Fortran"}), run("{scan}", (3, 65), out=out) is out)
upsweep.cumulative_sum(x := new(3, 65), out=x)
upsweep.discounted_cumsum(x := new(3, 65), 0.9, out=x)
upsweep.linear_recurrence(new(3, 65, seed=1), x := new(3, 65), out=x)
run("{scan}_carry", (3, 65), dtype="{float32; float64; complex64; int32}")
run("{scan}_carry", (3, 65), {reverse=True; reset=flags(3, 65); n_threads=1; n_threads=2; axis=0})
upsweep.combine(a := run("{scan}_carry", (3, 30)), b := run("{scan}_carry", (3, 65))).apply(a.value)
(out := keys(12), upsweep.bincount(keys(500), out=out, accumulate={False; True}) is out)
upsweep.histc(new(500, dtype="{dtype}"), 7, 0, 9)
upsweep.histc(new(500{; , special=np.nan}), {100; 5, -1, 1; 5, -1, 1, out=new(5)})
gaussian("Sum", 1)(*gaussian_data(37, 29, "float64"),
    ranges=BlockRanges.{from_mask(data(37, 29, dtype="bool")); causal(37, 29)})
of_pairs(lambda a, b: (-b.sqdist(Vi(points(29, 3)))).exp().solve(points(29, 2), alpha=0.5))
KernelSolve(GAUSSIAN, ALIASES, "b", axis=1)(points(29, 3), points(29, 3), points(29, 2), points(1), alpha=0.5)
cluster.grid_cluster(new(200, 3, dtype="{float}"), {0.5; [0.3, 0.5, 2.0]})
cluster.balanced_clusters(new(200, 3, dtype="{float}"), 16)
cluster.sort_clusters(new(200, 3), keys(200){; , return_permutation=True})
cluster.cluster_ranges(keys(200), check=False)
cluster.cluster_centroids(whole(200, 3, dtype="{float}"), keys(200){; , weights=whole(200)})
cluster.cluster_ranges_centroids(whole(200, 3), keys(200){; , whole(200)}, check=False)
cluster.from_matrix(*2 * [put(np.arange(20).reshape(10, 2))], new(10, 10, dtype="bool"))
cluster.swap_axes((1, 2, 3, 4, 5, 6))
build(elementwise("{body}", "{float}"))(new(100, dtype="{float}"))
build(reduction("{sum; max; min; prod}"))(new(7, 33, dtype="float64"))
build(recurrence('{schedule}'))(new(20, 33))
build(rnn())(new(9, 5, 8), new(8, 8))
build(gru())(new(9, 5, 3, 8, dtype="float64"), new(3, 8, 8, dtype="float64"))
(out := new(20, 33), build(recurrence("pass"))(new(20, 33, seed=1), out))
with_threads({1; 2}, lambda: build(recurrence("pass"))(new(40, 5000)))
"""

NUMPY = """
run("{scan}", (3, 65), layout="{negative; zero; swapped; unaligned}", axis={0; 1})
upsweep.bincount(keys(3, 65, layout="{layout}"), axis={0; 1})
upsweep.bincount(keys(500), new(500))
upsweep.scan(lambda s, x: 0.9 * s + x, 0.5, new(40, 5, layout="{layout}"))
upsweep.scan(lambda s, x: 0.9 * s + x, 0.5, x := new(40, 5), out=x)
(out := new(40, 5), upsweep.scan(lambda s, x: 0.9 * s + x, 0.5, new(40, 5), out=out) is out)
upsweep.scan(lambda s, x: 0.9 * s + x)(0.5, new(40, 5), axis=1)
upsweep.scan.carry(*UPDATES["{update}"], new(40, 5)).apply(UPDATES["{update}"][1])
upsweep.scan.gradient(*UPDATES["{update}"], new(40, 5),
    ones_as(upsweep.scan(*UPDATES["{update}"], new(40, 5))), checkpoint={None; 7})
upsweep.scan.gradient(*UPDATES["two gated"], new(40, 5), None, final_cotangent=(1, 2))
stream("{scan}",
    {; reverse=True; exclusive=True; reset=3 * [flags(3, 30)]; initial=new(3); out=[new(3, 30) for _ in "123"]})
stream("discounted_cumsum", window=40)
drain(upsweep.scan_blocks(upsweep.scan, *UPDATES["{update}"], [new(30, 5, seed=s) for s in range(3)]))
gaussian("{Sum; Max}", {0; 1}).value_and_grad(*gaussian_data(37, 29, "{float}"))
gaussian("Sum", 1).value_and_grad(*gaussian_data(37, 29, "float64"), ranges=BlockRanges.causal(37, 29))
describe(BlockRanges.{band(20, 30, 2, 3); band(20, 30, 2, 3, block=4); causal(20); block_diagonal([3, 4], [5, 1])})
describe(BlockRanges.from_mask(new(9, 7, dtype="bool")))
describe(BlockRanges.from_matrix(CELLS, CELLS, new(3, 3, dtype="bool")))
describe(BlockRanges.from_radius(new(20, 2), new(20, 2), 0.8, CELLS))
describe(BlockRanges.from_csr(CELLS, CELLS, [0, 2, 2, 3], [0, 2, 1]))
str(te.lower(*elementwise("{body}"), target="{cpu; cuda}"))
str(te.lower(*recurrence('{schedule}'), target="{cpu; cuda}"))
str(te.lower(*{reduction("sum"); rnn(); gru()}, target="{cpu; cuda}"))
run("{scan}{; _carry}", (3, 65), module=reference)
run("{peer}", (3, 65), module=reference)
reference.{bincount(keys(500), length=12); histogram(new(500), 7); histc(new(500), 7)}
reference.scan(*UPDATES["{update}"], new(40, 5))
sorted(upsweep.show_config())
with_threads(2, upsweep.get_num_threads)
upsweep.testing.assert_scan_close(new(3, 65), new(3, 65), new(3, 65))
[upsweep.__all__, te.__all__, cluster.__all__]
"""

TENSORS = """
run("{scan}", (3, 65), through=derive,
    {reverse=True; exclusive=True; reset=flags(3, 65); initial=new(3); return_final=True; axis=0; n_threads=1;
    n_threads=2})
run("discounted_cumsum", (3, 65), through=derive, window=5)
derive(upsweep.discounted_cumsum, new(3, 65, dtype="float64"), new(3, 1, dtype="float64", seed=1))
derive(lambda x: upsweep.scan(*UPDATES["{update}"], x), new(20, 3, dtype="float64"))
derive(lambda w: upsweep.bincount(keys(50), w, length=12), whole(50, dtype="float64"))
derive(lambda x, y, b: (-Vi(x).sqdist(Vj(y))).exp() @ b, points(7, 2), points(5, 2), points(5, 2))
derive(lambda x: upsweep.lfilter([0.5], [1.0, -0.5], x), new(3, 20))
torch.func.vmap(upsweep.cumulative_sum)(new(3, 4, 5))
"""

# numpy arrays, which are copied to the device and back.
DEVICE = """
upsweep.{cumulative_sum(; discounted_cumsum(gamma=0.9, x=; linear_recurrence(0.5, }data(3, 65), device="cuda")
upsweep.bincount(data(500, dtype="int64"), device="cuda")
"""

DASK = """
run("{scan}", (3, 65), method="{sequential; tree}", return_final=True)
upsweep.scan(*UPDATES["{update}"], new(40, 5), method="tree")
"""

# The type and the text of an error are part of the behaviour.
ERRORS = """
upsweep.cumulative_sum("abc")
upsweep.cumulative_sum(1.0)
upsweep.cumulative_sum(None)
upsweep.cumulative_sum(ones, axis=2)
upsweep.cumulative_sum(ones, axis=0.5)
upsweep.cumulative_sum(ones, initial=1j)
upsweep.cumulative_sum(ones, initial=np.ones(4))
upsweep.cumulative_sum(ones, reset=ones)
upsweep.cumulative_sum(ones, reset=np.zeros(5, bool))
upsweep.cumulative_sum(ones, dtype="U3")
upsweep.cumulative_sum(ones, out=np.empty(3))
upsweep.cumulative_sum(ones, out=np.empty((3, 4), int))
upsweep.cumulative_sum(ones, out=np.broadcast_to(1.0, (3, 4)))
upsweep.cumulative_sum(ones, exclusive=True, include_initial=True)
upsweep.cumulative_sum(ones, n_threads=0)
upsweep.cumulative_sum(ones, n_threads="2")
upsweep.cumulative_sum(ones, device="gpu")
upsweep.cumulative_sum(ones, device=0)
upsweep.cumulative_sum(ones, method="tree")
upsweep.cumulative_sum(np.ones(3, np.longdouble))
upsweep.cumulative_sum(np.ma.masked_array(ones))
upsweep.discounted_cumsum(ones, np.ones(2))
upsweep.discounted_cumsum(ones, 0.5, window=0)
upsweep.discounted_cumsum(ones, 0.5, window=3, initial=1.0)
upsweep.discounted_cumsum(ones, np.linspace(0, 1, 4), window=3)
upsweep.discounted_cumsum_left(ones, "x")
upsweep.linear_recurrence(np.ones(3), np.ones(4))
upsweep.linear_recurrence(1.0, 2.0)
upsweep.pscan(np.ones(3), np.ones(4))
upsweep.scan_forward(ones, ones, out=np.empty(2))
upsweep.combine(upsweep.cumulative_sum_carry(ones), upsweep.cumulative_sum_carry(np.ones((5, 4))))
upsweep.combine(1, 2)
upsweep.scan(lambda s, x: s + x)(0.0, "abc")
upsweep.scan(lambda s, x: s + x, None, ones)
upsweep.scan(lambda s, x: s if x > 0 else x, 0.0, ones)
upsweep.scan(lambda s, x: (s, x, s), 0.0, ones)
upsweep.scan(lambda s, x: s > x, 0.0, ones)
upsweep.scan(lambda s, x: np.fft.fft(s), 0.0, ones)
upsweep.scan(lambda s, x: s + x, np.ones(7), ones)
upsweep.scan(lambda s, x: s + x, 0.0, ones, axis=5)
upsweep.scan(lambda s, x: s + x, 0.0, None)
upsweep.scan(lambda s, x: s + x, 0.0, ones, length=7)
upsweep.scan(lambda s, x: s + x, 0.0, ones, out=np.empty(7))
upsweep.scan(lambda s, x: s + x, 0.0, ones, method="tree")
upsweep.scan(lambda s, x: s + x, 0.0, ones, checkpoint=0)
upsweep.scan.carry(lambda s, x: np.tanh(s + x), 0.0, ones)
upsweep.scan.gradient(lambda s, x: s + x, 0.0, ones, np.ones(7))
upsweep.scan_blocks(upsweep.bincount, [ones])
upsweep.scan_blocks(upsweep.cumulative_sum, ones)
list(upsweep.scan_blocks(upsweep.cumulative_sum, [ones, np.ones((2, 2))]))
upsweep.lfilter([1.0], [0.0], ones)
upsweep.lfilter([1.0], [1.0, 0.5], ones, zi=np.ones(7))
upsweep.ewm_mean(ones)
upsweep.ewm_mean(ones, alpha=2.0)
upsweep.ewm_mean(ones, alpha=0.5, span=3)
upsweep.ewm_sum(ones, halflife=-1)
upsweep.bincount([0.5, 1.0])
upsweep.bincount([-1, 2])
upsweep.bincount([1, 2], length=2)
upsweep.bincount([1, 2], length=-1)
upsweep.bincount([1, 2], weights=[1.0])
upsweep.bincount([1, 2], invalid="keep")
upsweep.bincount([1, 2], out=np.zeros(3))
upsweep.bincount([1, 2], accumulate=True)
upsweep.bincount([[1, 2]], axis=3)
upsweep.bincount([1, 2], minlength=-1)
upsweep.histogram(ones, bins=0)
upsweep.histogram(ones, bins=[3, 1])
upsweep.histogram(ones, range=(1, 0))
upsweep.histogram([np.nan])
upsweep.histogram(ones, weights=[1.0])
upsweep.histc(ones, bins=-1)
upsweep.histc(ones, min=2, max=1)
LazyTensor("abc")
LazyTensor(np.ones((3, 2)))
Vi(ones) + Vj(np.ones((3, 5)))
Vi(ones).sqdist(Vj(ones)).sum(axis=7)
Vi(ones).sqdist(Vj(ones)).Kmin(0, axis=1)
Vi(ones).sqdist(Vi(np.ones((9, 4)))).sum(axis=1)
Vi(ones).sum(axis=1, backend="TPU")
Pm("x")
Genred("Exp(x", ["x = Vi(3)"])
Genred("Nothing(x)", ["x = Vi(3)"])
Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(4)"])
Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"], "Product")
Genred("SqDist(x, y)", ["x = Vi(3)", "y = Vj(3)"])(ones, ones)
Genred("SqDist(x, y)", ["x = Vi(4)", "y = Vj(4)"])(ones)
KernelSolve("x * a", ["x = Vi(1)", "a = Vj(1)"], "b")
BlockRanges.from_mask([1, 2])
BlockRanges.band(3, 3, 2, 1)
BlockRanges.block_diagonal([-1])
BlockRanges.from_matrix([[0, 2], [1, 3]], [[0, 4]], [[True], [True]])
cluster.grid_cluster(np.ones(3), 0.5)
cluster.grid_cluster(ones, 0.0)
cluster.balanced_clusters(ones, 0)
cluster.sort_clusters(ones, np.ones(2, int))
cluster.cluster_ranges([0.5])
te.var("n") > 0 and 1
te.placeholder((-1,))
te.placeholder((3,), "float8")
te.compute((3,), lambda i: te.placeholder((2,), name="X")[i])
te.cast("text", 1)
te.build(*elementwise("2 * v"))(ones)
te.build(*elementwise("2 * v"))(np.ones(3))
te.build(elementwise("2 * v")[0], [])
te.build(*elementwise("2 * v"), "tpu")
upsweep.testing.assert_scan_close(ones, 2 * ones, ones)
upsweep.set_num_threads(0)
upsweep.nothing
upsweep.ComplexLazyTensor
"""

TABLES = {
    "numpy torch cuda dask": EVERYWHERE, "numpy torch cuda": IN_MEMORY, "numpy": NUMPY, "torch cuda": TENSORS,
    "cuda": DEVICE, "dask": DASK, "errors": ERRORS,
}  # fmt: skip

# Calls on 128 elements, whose time is that of checks and dispatch.
SMALL = """
upsweep.cumulative_sum{; _carry}(x)
upsweep.discounted_cumsum{; _carry}(x, 0.9)
upsweep.linear_recurrence{; _carry}(x, x)
upsweep.scan(decay, 0.5, x)
upsweep.bincount(k, None, 12)
upsweep.histogram(x, 10, (-3.0, 3.0))
upsweep.histc(x, 10, -3, 3)
upsweep.lfilter([0.5], [1.0, -0.5], x)
upsweep.ewm_mean(x, alpha=0.5)
squares(column, column)
Vi(column).sqdist(Vj(column)).argmin(axis=1)
"""


def expanded(table: str) -> Iterator[str]:
    """The calls of a table."""
    waiting = re.sub(r"\n +", " ", table).strip().splitlines()[::-1]
    while waiting:
        line = waiting.pop()
        if braces := re.search(r"{([^{}]*)}", line):
            if braces[1] in SETS:
                lines = [line.replace(braces[0], choice) for choice in expanded(SETS[braces[1]])]
            else:
                choices = [choice.strip() for choice in braces[1].split(";")]
                lines = [line[: braces.start()] + choice + line[braces.end() :] for choice in choices]
            waiting += lines[::-1]
        else:
            yield line
