"""What is measured of a run: its metrics, the cost of its steps, and runs side by side.

    metrics               loss, normalised entropy, AUC                    metrics
                          the first loss that is not finite, and why       finite
    a step                its time, waits and bytes                        step_cost, traffic
                          who owns how much of a rank's memory             memory
                          its parts, by the profiler                       step_profiler, breakdown
                            moment by moment                               timeline
    forecasts             what came beside what was forecast               forecasts, beside
                            at the end of a run of `recd train`            forecast_meter
                            of the dedupe factor                           dedupe_ahead
                            of the batches of a trainer's own loader       watched
    afterwards            a run's folder read back, and runs compared      run_log, runs_compared

`by_rank` gathers tensors of all ranks.
"""
