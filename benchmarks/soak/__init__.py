"""Long runs, watched from outside: memory, handles, threads and shared memory must stay what they
are once a job has warmed up."""
