"""The ids of batches as tensors: jagged rows, unique samples, Arrow in and out.

The rows of a feature, or of several, are in `jagged`. `keyed` changes a KJT, `joined` makes one of
several, and `hot` is one that keeps its mark when it is moved. `groups` of features have an IKJT
(`ikjt`) of their unique samples, or a partial one (`partial`). What both can do is in
`deduplicated`; `features` has all features of a batch, deduplicated or not. A `bundle` moves them.

Transforms run on unique samples by `row_wise`, on some of their keys by `some_keys`, and one after
another by `transformed`. `id_bounds` checks what comes out. In a trainer's own batches,
`own_batches` finds the features, and `kept_batches` sees whether a loader overwrites what is kept.

`arrow` has columns as tensors, and `wire` has unique samples as bytes. The kernels are in `rows`.
"""
