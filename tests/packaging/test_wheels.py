"""Hazard: wheels, extras and recipes whose versions or Pythons differ, and a CUDA library of another version."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import upsweep
from upsweep._backends.cuda import library

CHECKOUT = Path(__file__).parents[2]
PACKAGING = CHECKOUT / "packaging"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
CUDA13 = tomllib.loads((PACKAGING / "cuda13" / "pyproject.toml").read_text())
RECIPE = (PACKAGING / "conda" / "recipe.yaml").read_text()


@pytest.fixture(scope="module")
def build_wheels():
    spec = importlib.util.spec_from_file_location("build_wheels", PACKAGING / "build_wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cuda_wheel_and_the_conda_package_have_the_cores_version():
    version = PROJECT["version"]
    provider = CUDA13["tool"]["scikit-build"]["metadata"]["version"]
    source = (PACKAGING / "cuda13" / provider["input"]).read_text()
    assert re.search(provider["regex"], source)["value"] == version
    assert PROJECT["optional-dependencies"]["cuda13"] == [f"{CUDA13['project']['name']}=={version}"]
    assert re.search(r'^  version: "(.*)"$', RECIPE, re.M)[1] == version


def test_the_conda_package_needs_what_the_wheel_needs():
    requirements = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in [*requirements, *PROJECT["dependencies"], *PROJECT["optional-dependencies"]["expr"]]:
        name, limits = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        assert f"- {name} {limits}\n" in RECIPE


def test_wheels_tests_and_conda_packages_are_for_the_same_pythons(build_wheels):
    versions = build_wheels.pythons()
    assert PROJECT["requires-python"] == f">={versions[0]}"
    (listed,) = re.findall(r'^all="\$levels (.*)"$', (CHECKOUT / "tests" / "matrix.sh").read_text(), re.M)
    assert [name for name in listed.split() if name.startswith("3.")] == versions
    with_lock = [name for name in versions if not name.endswith("t")]
    variants = (PACKAGING / "conda" / "variants.yaml").read_text()
    assert re.findall(r"^  - (3\.\d+)\.\*", variants, re.M) == with_lock
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])) == with_lock


def test_a_wheel_that_is_too_large_is_an_error(build_wheels, tmp_path):
    for name, limit in build_wheels.LARGEST.items():
        wheel = tmp_path / f"{name}-1-py3-none-any.whl"
        for excess in (0, 1):
            with wheel.open("wb") as file:
                file.truncate(limit + excess)
            if excess:
                with pytest.raises(SystemExit, match=f"{limit + 1:,} bytes"):
                    build_wheels.check_size(wheel)
            else:
                assert build_wheels.check_size(wheel) == limit


@pytest.fixture
def cuda_wheel(tmp_path, monkeypatch):
    """Installs a wheel upsweep-cuda13 of some version, whose library is an empty file."""
    folder = tmp_path / "upsweep_cuda"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / library.NAME).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "elsewhere" / "library.py"))  # none in the package
    monkeypatch.delenv("UPSWEEP_CUDA_LIBRARY", raising=False)

    def install(version):
        metadata = tmp_path / f"upsweep_cuda13-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: upsweep-cuda13\nVersion: {version}\n")
        return folder / library.NAME

    return install


def test_the_library_of_a_cuda_wheel_is_loaded(cuda_wheel):
    path = cuda_wheel(upsweep.__version__)
    assert library.find() == path
    with pytest.raises(ImportError, match=f"{re.escape(str(path))}: cannot be loaded: .*file too short"):
        library.load()


def test_a_cuda_wheel_of_another_version_is_refused(cuda_wheel):
    cuda_wheel("0.0.1")
    advice = rf"upsweep-cuda13 0\.0\.1, .* pip install 'upsweep\[cuda13\]=={re.escape(upsweep.__version__)}'"
    with pytest.raises(ImportError, match=advice):
        library.load()
    assert "upsweep-cuda13 0.0.1" in str(upsweep.show_config())  # which reports it, and does not fail
