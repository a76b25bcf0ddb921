"""Hazards: figures of the README or the performance page that are not those of the committed results; results that
nothing shows any longer, because a benchmark or a case was renamed; a history that leaves out or moves results.
"""

import importlib.util
import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from upsweep_bench import charts, committed, headlines, page_tables
from upsweep_bench.charts import Bar, Panel

CHECKOUT = Path(__file__).parents[2]


def program(name):
    path = CHECKOUT / "asv_bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = program("performance_page")
RESULTS = committed.Results()
COLUMNS = ("result", "params", "version")


# ---- what is committed -----------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_results():
    for path in page.PAGES:
        assert page.updated(path.read_text(), page.blocks(RESULTS)) == path.read_text(), (
            f"{path.name}: run asv_bench/performance_page.py"
        )


def test_every_table_is_on_a_page():
    names = {name for path in page.PAGES for name in page.BLOCK.findall(path.read_text())}
    assert names == set(page.blocks(RESULTS))
    assert len(page.BLOCK.findall((CHECKOUT / "README.md").read_text())) == 1


def test_the_charts_are_those_of_the_results():
    files = page.chart_files(RESULTS)
    assert {path.name for path in page.CHARTS.glob("*.svg")} == set(files)
    for name, (_, panels) in files.items():
        assert charts.description(page.CHARTS / name) == charts.described(panels), (
            f"{name}: run asv_bench/performance_page.py"
        )
        assert f"{name}" in "".join(path.read_text() for path in page.PAGES)
    assert sum((page.CHARTS / name).stat().st_size for name in files) < 400_000


def test_every_headline_has_a_figure():
    for line in headlines.HEADLINES:
        sources = [source for source in (line.time, line.copy, *line.peers) if source is not None]
        assert any(source.get(RESULTS, line.machine) for source in sources), line.operation


def test_results_are_of_benchmarks_and_cases_that_exist():
    """A benchmark that moves keeps its name (`benchmark_name`) and its version, so that its history goes on."""
    benchmarks = json.loads((committed.RESULTS / "benchmarks.json").read_text())
    current = set()
    names = set()
    for path in committed.result_files():
        result = json.loads(path.read_text())
        for name, row in result["results"].items():
            row = dict(zip(result["result_columns"], row))
            names.add((path.parent.name, name))
            if row["version"] == benchmarks[name]["version"]:
                current.add((path.parent.name, name))
            for measured, known in zip(row["params"], benchmarks[name]["params"]):
                assert set(measured) <= set(known), f"{path.name}: {name}"
    assert current == names


def test_machines_are_named_after_what_they_are():
    for path in committed.RESULTS.glob("*/machine.json"):
        machine = json.loads(path.read_text())
        assert machine["machine"] == path.parent.name
        assert path.parent.name.split("-")[0] in ("xeon", "epyc", "h200")


# ---- reading results -------------------------------------------------------------------------------------------


def write_result(folder, commit, day, results, machine="h200"):
    (folder / machine).mkdir(exist_ok=True)
    date = datetime(2026, 11, day, tzinfo=UTC).timestamp() * 1000
    (folder / machine / "machine.json").write_text(json.dumps({"machine": machine, "num_cpu": "16", "version": 1}))
    result = {
        "commit_hash": commit, "date": date, "result_columns": COLUMNS, "results": results, "env_name": "x",
        "params": {"machine": machine, "python": "3.12"}, "python": "3.12", "requirements": {}, "env_vars": {},
    }  # fmt: skip
    (folder / machine / f"{commit[:8]}.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path):
    """Results of one benchmark in three commits, of another version of it, and of one that is gone."""
    root = tmp_path / "results"
    root.mkdir()
    known = {"unit": "ms", "version": "1", "params": [["'one'", "'two'", "'three'"]]}
    (root / "benchmarks.json").write_text(json.dumps({"a.track_b": known, "version": 2}))
    write_result(root, "a" * 40, 2, {"a.track_b": [[1.0, 2.0], [["'one'", "'two'"]], "1"]})
    write_result(root, "b" * 40, 1, {"a.track_b": [[9.0, 9.0, 3.0], [["'one'", "'two'", "'three'"]], "1"]})
    write_result(root, "c" * 40, 3, {"a.track_b": [[None, float("nan")], [["'one'", "'two'"]], "1"]})
    write_result(root, "d" * 40, 4, {"a.track_b": [[7.0], [["'one'"]], "another"]})
    write_result(root, "e" * 40, 5, {"gone": [[7.0], [["'one'"]], "1"]})
    return root


def test_each_case_has_its_newest_value(folder):
    results = committed.Results(folder)
    assert results.cases("h200", "a.track_b") == [("one",), ("two",), ("three",)]
    values = [results.get("h200", "a.track_b", name) for name in ("one", "two", "three")]
    assert [value.value for value in values] == [1e-3, 2e-3, 3e-3]
    assert [value.commit for value in values] == ["a" * 7, "a" * 7, "b" * 7]
    assert page_tables.measured_at(values) == "2026-11-01 (`bbbbbbb`), 2026-11-02 (`aaaaaaa`)"
    assert results.get("h200", "gone", "one") is None and results.cases("epyc-2core", "a.track_b") == []


def test_a_table_without_results_says_so(folder):
    blocks = page.blocks(committed.Results(folder))
    assert blocks["gpu-pairs"] == ["There are no results yet."]


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.166e-3, "1.17 ms"), (0.305, "305 ms"), (2.39e-05, "23.9 us"), (1e-4, "0.1 ms")]
)
def test_times_have_three_digits(seconds, text):
    assert page_tables.time_text(seconds).replace("\N{NO-BREAK SPACE}", " ") == text


def test_empty_columns_are_left_out():
    rows = [["a", "", ""], ["b", "", "2"]]
    assert page_tables.table_lines(("x", "y", "z"), rows) == ["| x | z |", "|---|---|", "| a | |", "| b | 2 |"]


# ---- charts ----------------------------------------------------------------------------------------------------


def test_a_chart_has_its_values_and_both_colour_schemes(tmp_path):
    pytest.importorskip("matplotlib")
    bars = [Bar("sum <1>", "numpy & co", 0.5), Bar("sum <1>", "torch", 250.0), Bar("count", "", 1.0)]
    panels = [Panel("A machine", "times", "ratio", bars), Panel("Other", "of a copy", "fraction", bars[2:])]
    panels.append(Panel("Empty", "times", "ratio", []))
    charts.write(tmp_path / "a.svg", "A title", panels)
    text = (tmp_path / "a.svg").read_text()
    assert charts.description(tmp_path / "a.svg") == charts.described(panels)
    assert "sum <1> numpy & co 0.50" in charts.description(tmp_path / "a.svg")
    assert "prefers-color-scheme:dark" in text and "var(--slower)" in text and "#0102" not in text
    assert "DejaVu" not in text


# ---- history ---------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The publisher in a repository of commits of main, one that was merged into it, and one that was not."""
    if not shutil.which("git"):
        pytest.skip("no git")
    root = tmp_path / "repository"
    root.mkdir()

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(root), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(message):
        git("commit", "-q", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    commits = {"first": commit("first")}
    git("switch", "-q", "-c", "side")
    commits["merged"] = commit("merged")
    git("switch", "-q", "main")
    commits["second"] = commit("second")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    commits["merge"] = git("rev-parse", "HEAD")
    git("switch", "-q", "-c", "other", "HEAD~1")
    commits["unmerged"] = commit("unmerged")
    git("switch", "-q", "main")
    commits["last"] = commit("last")
    publish = program("publish")
    monkeypatch.setattr(publish, "ASV_BENCH", root)
    return publish, commits


def test_results_of_merged_commits_are_shown_at_the_merge(repository):
    publish, commits = repository
    main = publish.commits_of("main")
    assert main == [commits[name] for name in ("first", "second", "merge", "last")]
    shown = {name: publish.commit_on(main, commit) for name, commit in commits.items()}
    assert shown == {**commits, "merged": commits["merge"], "unmerged": None}


def test_the_history_has_a_machine_once(repository, folder, monkeypatch, tmp_path):
    publish, commits = repository
    for path in committed.result_files(folder):
        path.unlink()
    for day, name in enumerate(("first", "merged", "unmerged"), 1):
        write_result(folder, commits[name], day, {"a.track_b": [[1.0 * day], [["'one'"]], "1"]})
    monkeypatch.setattr(publish, "RESULTS", folder)
    monkeypatch.setattr(publish, "result_files", lambda: committed.result_files(folder))
    target = tmp_path / "copy"
    target.mkdir()
    notes = publish.write_results(target, "main")
    assert [note.partition(": ")[2] for note in sorted(notes, key=len)] == [
        "left out", f"shown at {commits['merge'][:8]}, which merged it",
    ]  # fmt: skip
    written = [json.loads(path.read_text()) for path in committed.result_files(target)]
    assert {result["commit_hash"] for result in written} == {commits["first"], commits["merge"]}
    assert all(result["params"] == {"machine": "h200"} for result in written)


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="no repository")
def test_asv_publishes_all_results(tmp_path, capfd):
    pytest.importorskip("asv")
    publish = program("publish")
    if publish.git("rev-parse", "--verify", "main").returncode or (CHECKOUT / ".git" / "shallow").exists():
        pytest.skip("no branch main with its history")
    publish.main([str(tmp_path / "asv")])
    text = "".join(capfd.readouterr())
    assert "Couldn't find" not in text and "left out" not in text
    index = json.loads((tmp_path / "asv" / "index.json").read_text())
    assert set(index["machines"]) == {path.parent.name for path in committed.RESULTS.glob("*/machine.json")}
    assert len(index["graph_param_list"]) == len(index["machines"])
