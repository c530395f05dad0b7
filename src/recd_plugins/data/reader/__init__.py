"""The `local` reader: from the stripes of a table to the batches of a rank.

`local_reader` opens a `local_loader`, which has its rank's batches, in this process or in workers.
`rank_batches` has them by epoch and position: `order` says which rows they take, `batch_reader`
reads these window by window, and `stripe_reader` decodes each stripe. Workers hand batches over in
memory that processes share (`shared_tensors`). `read_log` notes which columns jobs read.
`period_loader` puts the loaders of a dataset that grows one behind the other.
"""
