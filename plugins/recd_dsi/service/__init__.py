"""The reader service (DPP): processes that read for trainers, and hand over whole batches.

A batch is a pure function of table, registry, seed, epoch and position. So a worker holds nothing
that could be lost, and any worker can be asked for any batch.

In a rank: `reader` is the record, whose `loader` has the batches that `fetching` asks of the
workers of a `fleet`, in `turns`. `process_fleets` has the fleets of this process, which
`local_backend` or `ray_backend` starts.

In a worker: `worker` answers what is asked for (`job`), `maker` makes it, and `buffer` keeps it.

Between them: `calls` over the wire with `credentials` and `addresses`, or `shared_memory`.

Beside them: the `coordinator` knows the `members` of a service, which `coordinator_callers` tell it
of, `scaling` says how many workers there should be, and `page` shows all that. `cli` has the
commands, `sizing` measures how many workers a trainer needs.
"""
