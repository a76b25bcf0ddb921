"""Lowering: from formulas and recurrences to scalar programs, the input of the code generators.

    lower (formulas of pairs)  --.     lower_elementwise, lower_features: rules of the operations
                                  >--> builder --> program --> verifier --> llvm/, cuda/
    lower_scalars (recurrences) -'

`program` defines the instruction set: start there. `builder` numbers values, folds constants and moves code out of
loops while instructions are added.
"""
