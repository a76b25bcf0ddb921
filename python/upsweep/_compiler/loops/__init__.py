"""Loop nests, the intermediate representation of `te`: expressions, statements, and what is common to all targets.

`te.lowering` writes a nest, `printing` shows it, `llvm.loops` and `cuda.loops` compile it.

    traversal <- expression_text <- expressions <- linear          scalar expressions and their affine forms
                                        |            |
                                    statements <- accesses         loops, stores, and who accesses what
                                        |
                printing   rewrite   reductions   cost         text, passes, sums in registers, cost model
                sizes                                          extents at the call

Start reading at `statements`.
"""
