"""Every benchmark case of upsweep: ``python asv_bench/run.py scans --help``."""

import sys

from upsweep_bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
