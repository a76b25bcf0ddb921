"""Hazard: benchmarks that measure the wrong thing, or report something else than they measured."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
import upsweep
from helpers import command, run_benchmarks
from upsweep.bench import machine, report
from upsweep.bench.cases import SMALLEST
from upsweep.bench.cases import cases as package_cases
from upsweep.bench.report import Row
from upsweep_bench import cli, figures, scans, sweep, threshold_table

Case = partial(scans.Case, device="cuda")
EVERY = scans.cases(device="cuda")

# Operation, shape, axis, dtype, with gradients: the threshold as a fraction of a copy.
FRACTIONS_OF_COPY = {
    **{
        ("linear_recurrence", (8, 1536, length), -1, dtype, False): threshold
        for dtype, thresholds in {
            "float32": (0.95, 0.99, 1.00), "bfloat16": (0.87, 0.93, 0.96), "float16": (0.87, 0.93, 0.96),
        }.items()
        for length, threshold in zip((2048, 8192, 32768), thresholds)
    },
    ("linear_recurrence", (8, 2048, 1536), 1, "float32", False): 0.85,
    ("linear_recurrence", (16, 16384, 128), 1, "float32", False): 0.85,
    ("linear_recurrence", (1_000_000, 32), -1, "float32", False): 0.85,
    ("linear_recurrence", (200_000, 128), -1, "float32", False): 0.85,
    ("linear_recurrence", (8, 1536, 8192), -1, "float32", True): 0.94,
    ("linear_recurrence", (8, 1536, 8192), -1, "bfloat16", True): 0.85,
    ("discounted_cumsum", (1, 2**28), -1, "float32", False): 0.85,
    ("discounted_cumsum", (16, 524288), -1, "float32", False): 0.75,
    ("discounted_cumsum", (64, 100_000), -1, "float32", False): 0.75,
    ("discounted_cumsum", (1, 10_000_000), -1, "float32", False): 0.75,
    ("discounted_cumsum", (65536, 64), -1, "float32", False): 0.85,
    ("discounted_cumsum", (4096, 1024), -1, "float32", False): 0.85,
    ("discounted_cumsum", (1024, 65536), -1, "float32", False): 0.85,
}  # fmt: skip
GATED = ("fpscan", "accelerated-scan", "accelerated-scan Triton", "associative_scan")
FORWARD = [
    *(((2, 256, n), "float32") for n in (32, 1024, 4096, 32768, 65536)),
    *(((8, 1536, n), dtype) for n in (512, 2048, 8192, 32768) for dtype in ("float32", "bfloat16")),
    ((1, 1, 65536), "float32"), ((1, 16, 65536), "float32"),
]  # fmt: skip
BACKWARD = [
    ((2, 256, 1024), "float32"), ((2, 256, 32768), "float32"),
    *(((8, 1536, n), dtype) for n in (2048, 8192) for dtype in ("float32", "bfloat16")),
]  # fmt: skip
SUMS = [(1, 100_000), (1, 10_000_000), (64, 100_000), (4096, 1024), (65535, 64), (1024, 65536)]


def find_case(
    operation, shape, dtype="float32", gradients=False, axis=-1, metric="of copy", window=None, carry=False
):
    matching = [
        case for case in EVERY
        if (case.operation, case.shape, case.dtype, case.gradients) == (operation, shape, dtype, gradients)
        and (case.axis, case.metric, case.window, case.carry) == (axis, metric, window, carry)
    ]  # fmt: skip
    assert len(matching) == 1, (operation, shape, dtype, len(matching))
    return matching[0]


def test_every_fraction_of_a_copy_has_its_threshold():
    for (operation, shape, axis, dtype, gradients), threshold in FRACTIONS_OF_COPY.items():
        assert find_case(operation, shape, dtype, gradients, axis).threshold == threshold
    fractions = [case for case in EVERY if case.metric == "of copy" and case.threshold is not None]
    assert len([case for case in fractions if not (case.carry or case.window)]) == len(FRACTIONS_OF_COPY)


def test_aggregates_are_compared_with_a_copy():
    for operation in ("linear_recurrence", "discounted_cumsum", "cumulative_sum"):
        for shape in ((256, 2**20), (1, 2**28)):
            case = find_case(operation, shape, carry=True)
            assert case.threshold == 0.85
            assert case.n_bytes == 2**28 * (8 if case.gated else 4)  # what is read
    assert find_case("linear_recurrence", (2**14, 2**14), axis=0, carry=True).threshold == 0.85


def test_every_point_of_the_peers_tables_has_a_case():
    for shape, dtype in FORWARD:
        thresholds = dict(find_case("linear_recurrence", shape, dtype).peers)
        assert set(thresholds) == set(GATED) and min(thresholds.values()) >= 1
    for length in (4096, 16384, 65536):
        assert dict(find_case("linear_recurrence", (2, 256, length)).peers)["fpscan"] == 1.1
    for shape, dtype in BACKWARD:
        peers = find_case("linear_recurrence", shape, dtype, gradients=True).peers
        assert peers == tuple((name, 1.0) for name in GATED[:3])
    for shape in SUMS:
        assert find_case("discounted_cumsum", shape).peers == (("torch-discounted-cumsum", 1.0),)
    for shape in [*SUMS, (1, 2**28)]:
        assert find_case("cumulative_sum", shape).peers == (("torch.cumsum", 1.0),)


def test_odd_lengths_latency_and_host_cost():
    for length, power in ((3000, 2048), (10007, 8192), (100003, 131072)):
        (case,) = (case for case in EVERY if case.versus_shape and case.length == length)
        assert case.versus_shape[1] == power and case.threshold == pytest.approx(1 / 1.05)
        for shape in (case.shape, case.versus_shape):
            assert 0.99 * 25_165_824 < shape[0] * shape[1] <= 25_165_824
    assert find_case("linear_recurrence", (1, 65536), metric="us").threshold == 8
    assert find_case("discounted_cumsum", (1, 100_000), metric="us").threshold == 5
    host = [case for case in EVERY if case.metric == "us host"]
    assert {case.operation for case in host} == {"linear_recurrence", "discounted_cumsum", "cumulative_sum"}
    assert all(case.threshold == 5 and case.n_elements < 10_000 for case in host)
    assert find_case("discounted_cumsum", (1, 10_000_000), window=1000).threshold == 0.5


def test_minimal_bytes():
    assert Case("linear_recurrence", (2, 3)).n_bytes == 6 * 12
    assert Case("linear_recurrence", (2, 3), "bfloat16").n_bytes == 6 * 6
    assert Case("linear_recurrence", (2, 3), gradients=True).n_bytes == 6 * 32
    assert Case("linear_recurrence", (2, 3), "bfloat16", gradients=True).n_bytes == 6 * 16
    assert Case("discounted_cumsum", (2, 3)).n_bytes == Case("cumulative_sum", (2, 3)).n_bytes == 6 * 8


def test_names_tell_cases_apart_and_families_join_lengths():
    cases = EVERY
    assert len({(case.name, case.dtype) for case in cases}) == len(cases)
    assert set(scans.cases(quick=True, device="cuda")) - set(cases)  # without what is compiled
    assert {case.name for case in scans.cases(quick=True, device="cuda")} < {case.name for case in cases}
    assert (
        Case("linear_recurrence", (8, 64, 3), axis=1).family == Case("linear_recurrence", (8, 9, 3), axis=1).family
    )
    assert Case("linear_recurrence", (8, 64)).family != Case("linear_recurrence", (9, 64)).family


# ---- the command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["scans", "--batch", "2"], "argument --batch: needs scans --device cuda"),
        (["scans", "--seqlens", "32", "64"], "argument --seqlens: needs scans --device cuda"),
        (["scans", "--outdir", "folder"], "argument --outdir: needs scans --device cuda"),
        (["counts", "--device", "cuda", "--dim", "4"], "argument --dim: is about scans"),
        (["scans", "--device", "cuda", "--threads", "2"], "argument --threads: is about the CPU"),
        (["scans", "--device", "tpu"], "argument --device: invalid choice"),
        (["scans", "--device", "cuda", "--dtype", "float64"], "argument --dtype: invalid choice"),
        (["scans", "--device", "cuda", "--seqlens", "0"], "argument --seqlens: expected a number of at least 1"),
        (["scans", "--device", "cuda", "--warmup", "-1"], "argument --warmup: expected a number of at least 0"),
        (["scans", "--device", "cuda", "--iters", "many"], "argument --iters: invalid int value: 'many'"),
    ],
)
def test_options_that_do_not_go_together(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def parsed(*arguments):
    return cli.parser().parse_args(arguments)


@pytest.mark.parametrize("family", ["scans", "counts", "pairs", "userscan"])
def test_the_command_of_the_package(tmp_path, family):
    if family in ("pairs", "userscan"):
        pytest.importorskip("llvmlite")
    done = command(tmp_path, "bench", family, "--quick", "--threads", "2", "--json", "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows and all(row["value"] > 0 and row["seconds"] > 0 for row in rows)
    assert {row["method"] for row in rows} >= {"upsweep"}


@pytest.mark.parametrize("family", ["scans", "counts", "pairs", "userscan"])
def test_the_number_of_cases_does_not_depend_on_their_size(family):
    counts = {sum(1 for _ in package_cases(family, "cpu", n)) for n in (SMALLEST, 8 * SMALLEST)}
    assert len(counts) == 1 and min(counts) >= 2


def test_without_a_family_the_command_measures_scans():
    assert upsweep_parser().parse_args([]).family == parsed().family == "scans"


def test_the_table_of_the_package(capsys):
    rows = [
        Row("a", "float32", 1e-3, 0.8, "of copy", n_bytes=10**6, method="upsweep"),
        Row("np.cumsum against a", "float32", 4e-3, 4.0, "x", method="np.cumsum"),
        Row("b", "float32", 2e-3, 0.7, "of copy", n_bytes=10**6, method="upsweep", contention=0.5),
    ]
    report.print_cases(rows)
    head, a, b, *legend = capsys.readouterr().out.splitlines()
    assert head.split("  ")[-2:] == ["compared with", "times faster"] and "fraction of a copy" in head
    assert a.split() == ["a", "float32", "1.000", "ms", "1.0", "0.80", "np.cumsum", "4.0"]
    assert b.split() == ["b", "float32", "2.000", "ms", "0.5", "0.70", "BUSY"]
    assert any(line.startswith("BUSY: other processes used the cores") for line in legend)
    report.print_cases([Row("c", "float32", 1e-3, 5.0, "Gpairs/s", method="upsweep")])
    printed = capsys.readouterr().out
    assert "times faster" not in printed and "BUSY" not in printed and "copy" not in printed


def test_the_command_of_the_package_times_no_wrong_answer(monkeypatch, capsys):
    from upsweep import bench, selftest

    right = upsweep.cumulative_sum
    monkeypatch.setattr(selftest, "run", lambda **_: True)
    monkeypatch.setattr(upsweep, "cumulative_sum", lambda x, **keywords: right(x, **keywords) * 1.01)
    parser = upsweep_parser()
    assert bench.run(parser.parse_args(["scans", "--quick", "--only", "_sum 64 x"])) == 1
    reported = capsys.readouterr().out
    assert "no speed is reported" in reported and "cumulative_sum 64 x" in reported and " ms" not in reported
    assert bench.run(parser.parse_args(["scans", "--quick", "--only", "no such case"])) == 2


def upsweep_parser():
    import argparse

    from upsweep import bench

    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    "run", [run_benchmarks, lambda folder, *rest, **env: command(folder, "bench", *rest, **env)]
)
def test_without_a_device_the_command_says_so(tmp_path, run):
    done = run(tmp_path, "scans", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "bench scans --device cuda: " in done.stderr and "torch" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_without_torch_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["scans", "--device", "cuda"]) == 2
    assert "needs torch, which is not installed" in capsys.readouterr().err


def test_flags_of_the_sweep():
    assert sweep.flags_used(parsed("scans", "--device", "cuda")) == []
    for flags in (["--batch", "3"], ["--iters", "5"], ["--outdir", "x"]):
        assert sweep.flags_used(parsed("scans", "--device", "cuda", *flags)) == flags[:1]
    plain = sweep.Sweep.of(parsed("scans", "--dim", "7"))
    assert (plain.batch, plain.dim, plain.dtype, plain.iters, plain.warmup) == (2, 7, "float32", 100, 10)
    assert list(plain.seqlens) == [2**power for power in range(5, 17)]
    flags = [
        "--batch",
        "3",
        "--dim",
        "5",
        "--dtype",
        "bfloat16",
        "--seqlens",
        "100",
        "64",
        "--iters",
        "4",
        "--warmup",
        "0",
        "--outdir",
        "docs",
    ]
    chosen = sweep.Sweep.of(parsed("scans", "--quick", *flags))
    assert chosen == sweep.Sweep(3, 5, "bfloat16", [100, 64], 4, 0, Path("docs"))
    assert [(case.shape, case.dtype) for case in chosen.cases()] == [
        ((3, 5, 100), "bfloat16"), ((3, 5, 64), "bfloat16"),
    ]  # fmt: skip
    assert all("Hillis-Steele" in dict(case.peers) for case in chosen.cases())


# ---- rows ----------------------------------------------------------------------------------------------------


def test_a_row_that_could_not_be_timed(tmp_path, capsys):
    row = Row("peer against case", "float32", None, None, "x", 1.0, note="raised, not timed: OSError: gone")
    assert row.met is None and row.rate is None
    threshold_table.print_table([row, Row("case", "float32", 1e-3, 0.9, "of copy", 0.85, n_bytes=10**6)])
    table = capsys.readouterr().out
    assert "raised, not timed: OSError: gone" in table and "1 of 1 thresholds met" in table and "1.0" in table
    report.write_json(tmp_path / "rows.json", {}, [row])
    (fields,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert fields["seconds"] is None and fields["note"] == row.note


def series():
    for length, ours in ((64, 1e-6), (128, 2e-6), (256, 4e-6)):
        about = {"length": length, "family": "linear_recurrence 2 x n, float32"}
        yield Row("own", "float32", ours, 0.8, "of copy", 0.7, 1000, method="upsweep", **about)
        if length != 256:
            yield Row("peer", "float32", 3 * ours, 3.0, "x", method="fpscan", **about)
        else:
            yield Row("peer", "float32", None, None, "x", method="fpscan", note="refused", **about)


class Axes:
    """What is drawn, instead of drawing it."""

    def __init__(self):
        self.drawn = {}

    def plot(self, x, y, marker, label):
        self.drawn[label] = list(zip(x, y))


def test_lines_of_a_figure():
    axes, rows = Axes(), list(series())
    figures.lines(axes, rows[::-1], lambda row: row.method, lambda row: row.seconds)
    assert axes.drawn["upsweep"] == [(64, 1e-6), (128, 2e-6), (256, 4e-6)]
    assert [length for length, _ in axes.drawn["fpscan"]] == [64, 128]


def test_figures_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    paths = sweep.write_figures(tmp_path / "new" / "folder", "a device", list(series()))
    assert [path.name for path in paths] == ["latency_vs_seqlen.png", "speedup_vs_seqlen.png"]
    figures.write_against_length(tmp_path / "lengths.png", "a device", list(series()))
    pictures = [path.read_bytes() for path in (*paths, tmp_path / "lengths.png")]
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 5000 for picture in pictures)
    assert len(set(pictures)) == 3


def test_the_machine_is_described_without_folders(monkeypatch):
    config = upsweep.show_config()
    broken = {"cuda_library": "/somewhere/private/libupsweep_cuda.so", "cuda_architectures": "/somewhere/x: no"}
    monkeypatch.setattr(upsweep, "show_config", lambda: type(config)({**config, **broken}))
    described = machine.describe()
    assert described["cuda_library"] == "libupsweep_cuda.so" and "somewhere" not in json.dumps(described)
    device = {"gpu": "A GPU", "gpu_processors": 132, "gpu_memory": "1 GiB", "gpu_l2": "50 MiB", "cuda": "13.0"}
    text = machine.text({**described, **device, "torch": "2", "cuda_driver": "13.1"})
    assert text.startswith("A GPU, 132 processors") and text.endswith(machine.text(described))


# ---- asv -----------------------------------------------------------------------------------------------------


def program(name):
    """A program of asv_bench."""
    path = Path(__file__).parents[2] / "asv_bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def publishable():
    return program("publishable")


RESULT = {
    "commit_hash": "1" * 40, "env_name": "existing-py_opt_conda_bin_python", "date": 5,
    "python": "/opt/conda/bin/python", "params": {"machine": "h200", "python": "/opt/conda/bin/python"},
    "results": {"a.time_b": [[1e-3], [["'x 1/2 of copy: 3'"]]]},
}  # fmt: skip


def test_results_are_filed_without_paths(publishable, monkeypatch, tmp_path):
    monkeypatch.setattr(publishable, "git", lambda *words: "7" if words[0] == "show" else "ab" * 20)
    before = tmp_path / "11111111-existing-py_opt_conda_bin_python.json"
    before.write_text(json.dumps(RESULT))
    target = publishable.main([str(before), "--environment", "existing-py3.12"])
    assert [path.name for path in tmp_path.iterdir()] == ["abababab-existing-py3.12.json"] == [target.name]
    after = json.loads(target.read_text())
    assert after["commit_hash"] == "ab" * 20 and after["date"] == 7000 and after["env_name"] == "existing-py3.12"
    assert after["results"] == RESULT["results"] and "conda" not in target.read_text()


@pytest.mark.parametrize("left", ["/home/someone/x", "~/x", "in /opt/x", "-I/usr/include", r"C:\x"])
def test_a_result_that_still_names_a_path_is_refused(publishable, left):
    with pytest.raises(ValueError, match="still names a path"):
        publishable.cleaned({**RESULT, "env_vars": {"A": left}}, "a", 1, "b", "3.12")


def test_values_are_filed_by_the_names_that_asv_uses():
    from_bench = program("from_bench")
    rows = [{"case": f"sum {n}", "dtype": "float32", "value": n / 2, "seconds": n / 1e3} for n in (1, 2)]
    peer = {"case": "numpy against sum 1", "dtype": "float32", "value": 3.5, "seconds": 1.0, "method": "numpy"}

    def values(*names, unit="of copy"):
        benchmark = {"unit": unit, "params": [list(map(repr, names))]}
        return from_bench.values(benchmark, [*rows, peer])

    assert values("sum 2, float32", "sum 3, float32", "sum 1, float32") == [1.0, None, 0.5]
    assert values("sum 1", "sum 2", "sum") == [0.5, 1.0, None]
    assert values("sum 1", "sum 2", unit="ms") == [1.0, 2.0]
    assert values("numpy: sum 1, float32", "numpy: sum 2, float32", unit="times upsweep") == [3.5, None]
