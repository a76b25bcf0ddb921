"""Lowering: from formulas and recurrences to scalar programs, the input of the code generators.

    lower (formulas of pairs)  --.     lower_features, lower_elementwise: rules of the operations
                                  >--> builder --> program --> llvm/, cuda/
    lower_scalars (recurrences) -'

`program` defines the instruction set, and verifies programs: start there. `builder` numbers values, folds
constants and moves code out of loops while instructions are added.
"""
