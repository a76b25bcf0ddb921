"""The command of the fuzzers."""

import argparse
import sys

from . import driver


def main():
    """Run the corpus and the families; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Differential fuzzers")
    parser.add_argument("--seconds", type=float, default=60, help="for all families together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--family", nargs="+", action="extend", choices=driver.FAMILIES, help="by default all of them"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds that a case may take")
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    options = parser.parse_args()
    families = options.family or driver.FAMILIES
    if options.case is not None:
        failures = []
        for family in families:
            print(driver.draw(family, options.seed, options.case).text, flush=True)
            text = driver.run_case(family, options.seed, options.case)
            if text is not None:
                failures.append(text)
                print(text)
        return 1 if failures else 0
    failures = driver.run_corpus()
    print(f"corpus: {len(driver.CORPUS)} cases, {len(failures)} failures", *failures, sep="\n", flush=True)
    for family in families:
        n_cases, failed = driver.run_family(family, options.seed, options.seconds / len(families), options.limit)
        print(f"{family}: {n_cases} cases, {len(failed)} failures", *failed, sep="\n", flush=True)
        failures += failed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
