"""Loop nests, the intermediate representation of `te`: expressions, statements, and what is common to all targets.

`te.lowering` writes a nest, `llvm.loops` and `cuda.loops` compile it.

    traversal <- expression_text <- expressions <- linear <- ranges    affine forms and bounds of indices
                                        |            |
                                    statements <- accesses             loops, stores, and who accesses what
                                        |
                          rewrite   reductions   cost                  passes, sums in registers, cost model

`sizes` evaluates extents at the call. Start reading at `statements`.
"""
