"""Front end of user-defined scans: from a Python function to a recurrence, its derivative and its parallel form.

`_core.user_scan` and the backends call it. It imports no array library but numpy, and runs nothing.

    update(state, x) --trace--> Recurrence --find_monoid--> Monoid      parallel in time: combine runs of steps
       |      symbols.py            |    \\--find_linear---> LinearUpdate   gates * state + tokens
       guards.py                    |     \\-adjoint-------> Recurrence     of cotangents, backwards in time
       caches traces                 \\--written, parsed---> str            for torch's operations

- `symbols`: the symbolic numbers that an update is called with, `integers`: those that are integers; `promotion`:
  their dtypes; `operations`: their operators and functions; `functions`: those that are made of others;
  `protocols`: numpy's, scipy's and torch's functions lead there; `lookups`: symbols as indices of tables.
- `trace`: the traced update and its dtypes; `guards`: the cache of traces and compiled scans.
- `recurrence`: the representation, its rewrites, its adjoint and its serialisation.
- `associative`: the monoid or the linear form of it.

Start reading at `recurrence.Recurrence` and `trace.trace`. `_compiler.llvm.scans` and `_compiler.cuda.scans`
generate code from a recurrence.
"""

from upsweep._compiler.recurrences import lookups, protocols  # add functions and methods to symbols

__all__ = ["lookups", "protocols"]
