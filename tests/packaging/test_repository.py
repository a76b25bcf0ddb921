"""Hazards: actions that are named by a tag, which may move; workflows that check something else than `.ci/run`;
files that name another version, or other Pythons, than pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

import pytest
import upsweep

CHECKOUT = Path(__file__).parents[2]
WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
# A source distribution has no workflows.
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="no checkout")

PINNED = re.compile(r"(?:[\w-]+/)+[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
CHECKERS = re.compile(r"\b(?:pytest|ruff|mypy|pyright|sphinx|asv|tests\.fuzz|matrix\.sh|zizmor)\b")


def each_line(pattern):
    """What a pattern finds in the lines of the workflows, with its file."""
    found_lines = []
    for path in WORKFLOWS:
        found_lines += [(path.name, line.strip()) for line in re.findall(pattern, path.read_text(), re.MULTILINE)]
    return found_lines


def test_actions_are_named_by_commit():
    actions = each_line(r"^[\s-]*uses: (.*)$")
    assert len(actions) >= 15
    assert [each for each in actions if not (PINNED.fullmatch(each[1]) or each[1].startswith("./.github/"))] == []
    versions = {}
    for _, action in actions:
        versions.setdefault(action.partition("@")[0], set()).add(action)
    assert [names for names in versions.values() if len(names) > 1] == []


def test_workflows_run_checks_by_the_stages_of_ci():
    lines = each_line(r"^([^#\n]*)")
    assert [line for line in lines if CHECKERS.search(line[1])] == []


def test_workflows_call_every_stage():
    script = (CHECKOUT / ".ci" / "run").read_text()
    stages = re.search(r'^all="(.*)"$', script, re.MULTILINE)[1].split()
    assert stages == re.findall(r"^run_(\w+)\(\) {$", script, re.MULTILINE)
    assert stages == re.findall(r"^#   ([a-z]+)  +\w", script, re.MULTILINE)  # the list at its head
    called = [stage for _, line in each_line(r"run: \.ci/run (.*)$") for stage in line.split()]
    assert set(called) == set(stages)


def test_every_job_has_a_limit_and_its_own_permissions():
    for path in WORKFLOWS:
        text = path.read_text()
        jobs = re.split(r"^  (?=[\w-]+:$)", text.partition("\njobs:\n")[2], flags=re.MULTILINE)[1:]
        assert jobs
        assert "\npermissions: {}\n" in text
        for job in jobs:
            assert "\n    permissions:\n" in job, f"{path.name}: {job}"
            assert "timeout-minutes: " in job or "uses: ./" in job, f"{path.name}: {job}"


def test_pythons_are_those_of_the_classifiers():
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    (tested,) = each_line(r"python: \[(.*)\]$")
    assert re.findall(r'"([\d.]+)"', tested[1]) == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert re.search(r"^version: (.*)$", (CHECKOUT / "CITATION.cff").read_text(), re.MULTILINE)[1] == version
    changelog = (CHECKOUT / "CHANGELOG.md").read_text()
    latest = re.search(r"^## \[(.*)\] - (unreleased|\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert latest[1] == version
    assert changelog.splitlines()[-1].startswith(f"[{version}]: {PROJECT['urls']['Source']}/")


def test_a_package_index_has_addresses_for_what_the_readme_shows_and_links():
    """An index has no checkout; each address names a file of this one."""
    (metadata,) = Path(upsweep.__file__).parents[1].glob("upsweep-*.dist-info/METADATA")
    targets = re.findall(r"\]\(([^)]+)\)", metadata.read_text())
    assert len(targets) == len(re.findall(r"\]\(([^)]+)\)", (CHECKOUT / "README.md").read_text())) > 10
    _, owner, name = PROJECT["urls"]["Source"].rsplit("/", 2)
    address = rf"https://(?:raw\.githubusercontent|github)\.com/{owner}/{name}/(?:blob/)?main/(.*)"
    for target in targets:
        match = re.fullmatch(address, target)
        assert match and (CHECKOUT / match[1]).is_file(), target
        assert ("raw" in target) == match[1].endswith(".svg")
