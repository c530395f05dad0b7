"""What happens to a batch between reader and trainer: `dedup`, then the transforms of `preprocess`.

`steps` says what each transform does to a schema, before there is any batch. `batch_transform` puts
batches through the converter and all transforms, those of dense columns by `dense_step`. The first
batches are checked: `converter_check` holds converters to the samples that they were given, and
`transform_check` holds transforms to one row at a time. `conversion` does the same to a trainer's
own batches.
"""
