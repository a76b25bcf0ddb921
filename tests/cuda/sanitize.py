"""Runs compute-sanitizer's four tools over every family of CUDA kernels, on a device.

    python tests/cuda/sanitize.py [--tool ...] [--group ...] [--seconds 480] [--jobs 4] [--logs FOLDER]

Each group of `support/kernel_cases.py` runs once without a tool, which checks the results and lets NVRTC compile,
and once under each tool, in processes without torch: device memory comes from the library, one allocation for each
array, so that a tool sees every bound and every element that nothing has written. First, each tool has to report a
deliberate error. The table has, for each run, the reported errors and the seconds. Logs have the tools' reports.

A block that waits for others needs them to run at the same time, under a tool, too. No kernel here waits for a
block that may not have started: tiles with look-back are taken in the order in which blocks start, and persistent
scans are launched cooperatively, with one block a processor.

synccheck (2025.3) reports correct kernels whose warps meet at different named barriers: such a kernel is the group
"named barriers". What a tool reports of the persistent scans, which synchronise in this way, is in the table and
no error of the run as long as it reports that kernel too. racecheck does not: what it reports of those scans
makes the exit status 1. cuda/README.md says why these reports are false.
"""

import argparse
import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from glob import glob
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import kernel_cases

TOOLS = {
    "memcheck": ["--padding", "64"], "racecheck": [], "initcheck": [], "synccheck": [],
}  # fmt: skip
NAMED_BARRIERS = "named barriers"
WITH_NAMED_BARRIERS = (NAMED_BARRIERS, "split lines", "updates")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
REPORT_LINES = 12  # of the first report of a run, in the summary


def find_sanitizer():
    """Return the path of compute-sanitizer: on the path, of a toolkit, or of a wheel; None without one."""
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    candidates = [shutil.which("compute-sanitizer")]
    for folder in [*filter(None, roots), *(f"{entry}/nvidia/*" for entry in sys.path if entry)]:
        candidates += glob(f"{folder}/bin/compute-sanitizer") + glob(
            f"{folder}/compute-sanitizer/compute-sanitizer"
        )
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


class Runner:
    """Runs groups under tools until a deadline."""

    def __init__(self, sanitizer, folder, deadline, limit):
        self.sanitizer, self.folder, self.deadline, self.limit = sanitizer, folder, deadline, limit

    def run(self, group, tool=None):
        """Return (errors, seconds, log); errors are a number, or a str that says why there is none."""
        begin = time.monotonic()
        limit = min(self.limit, self.deadline - begin)
        log = self.folder / f"{group.replace(' ', '-')}.{tool or 'plain'}.log"
        if limit < 1:
            return "not run", 0.0, log
        command = [sys.executable, __file__, "--run", group]
        if tool is not None:
            command = [self.sanitizer, "--tool", tool, *TOOLS[tool], *command]
        if group == "fault":
            command += ["--tool", tool]
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what the tool has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return self._errors(log.read_text(errors="replace"), status, tool), time.monotonic() - begin, log

    def _errors(self, text, status, tool):
        if "Device not supported" in text:
            return "not supported"
        if status is None:
            return "time limit"
        counts = SUMMARY.findall(text)
        if tool is not None and not counts:
            return "no report"
        errors = int(counts[-1]) if counts else 0
        return errors if errors or not status else "wrong results"


def first_report(errors, log):
    """Return the part of a log that says what is wrong: a tool's first report, or the end of the output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    if isinstance(errors, int):
        reports = [line for line in lines if line.startswith("=========") and line.strip("= ")]
        return "\n".join(reports[1 : 1 + REPORT_LINES])  # after the tool's name
    return "\n".join(lines[-REPORT_LINES:])


def sanitize(options):
    """Run all and print the table; return whether nothing was found."""
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit (cuda-sanitizer)")
        return False
    version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False)
    print(f"{sanitizer}: {version.stdout.strip().splitlines()[-1] if version.stdout.strip() else version.stderr}")
    folder = Path(options.logs or tempfile.mkdtemp(prefix="sanitize"))
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    runner = Runner(sanitizer, folder, begin + options.seconds, options.limit)
    tools, groups = options.tool or list(TOOLS), options.group or list(kernel_cases.GROUPS)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {("fault", tool): pool.submit(runner.run, "fault", tool) for tool in tools}
        faults = [run.result() for run in runs.values()]
        if not any(isinstance(errors, int) for errors, *_ in faults):
            errors, _, log = faults[0]
            print(f"the tools do not run on this machine ({errors}):\n{first_report(errors, log)}")
            return False
        for tool in (None, *tools):
            runs |= {(group, tool): pool.submit(runner.run, group, tool) for group in groups}
        results = {key: run.result() for key, run in runs.items()}
    print(f"| group | {' | '.join(['no tool', *tools])} |\n|{'---|' * (len(tools) + 2)}")
    for group in ("fault", *groups):
        cells = [results.get((group, tool), ("", 0.0, None)) for tool in (None, *tools)]
        print(f"| {group} | {' | '.join(f'{errors} ({seconds:.0f} s)' for errors, seconds, _ in cells)} |")
    wrong = False
    reports = {tool: results.get((NAMED_BARRIERS, tool), (0,))[0] for tool in ("racecheck", "synccheck")}
    for (group, tool), (errors, _, log) in results.items():
        reported = reports.get(tool)
        is_known = group in WITH_NAMED_BARRIERS and isinstance(reported, int) and reported > 0
        is_right = isinstance(errors, int) and (is_known or (errors > 0) == (group == "fault"))
        if not is_right:
            print(f"\n{group}, {tool or 'no tool'}: {errors}\n{first_report(errors, log)}")
        wrong = wrong or not is_right
    print(f"\n{time.monotonic() - begin:.0f} s; logs: {folder}")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description="compute-sanitizer over every family of CUDA kernels")
    parser.add_argument("--tool", nargs="+", choices=TOOLS, help="by default all")
    parser.add_argument("--group", nargs="+", choices=kernel_cases.GROUPS, help="by default all")
    parser.add_argument("--seconds", type=float, default=480, help="for everything")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one run may take")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--logs", help="folder of the tools' reports; by default a temporary one")
    parser.add_argument("--run", choices=["fault", *kernel_cases.GROUPS], help="run this group in this process")
    options = parser.parse_args()
    if options.run == "fault":
        return kernel_cases.run_fault(*options.tool)
    if options.run:
        return kernel_cases.run_group(options.run)
    return 0 if sanitize(options) else 1


if __name__ == "__main__":
    sys.exit(main())
