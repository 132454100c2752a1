"""One run of the job.

The way of a record from Kafka to the commit goes forward through these files:

1. `options.job_spec`: a command line becomes a `job.spec.JobSpec`, or the document of `ratchet sink` does.
2. `cli.main`: of the spec it makes the `RowPipeline` (what becomes of records), the store, not opened
   (`stores.open_store`, which finds its class in `stores.registry`), the `TopicPlanner`, which asks Kafka, and the
   `RunState`, which is told each step from here on. Then it starts 3.
3. `job.run_batch` and `run_stream`, or `structured.run_structured`: when to look, and when to end.
4. `start`: `require_startable` refuses what is wrong without Spark, `with_columns` infers columns from the values where
   settings do not name them, `opened` takes over: `ResultStore.open` returns the offsets that the table has.
5. `plan`: `TopicPlanner.offset_range` is what the topic holds, `resume` where to read on.
6. `commit.commit_slices`: 7 to 9 for each slice of that range. A query of Structured Streaming makes its own slices,
   and goes on at `commit.commit_records`.
7. `reading.records`: exactly the committed records of the slice, as a DataFrame of Spark's Kafka source.
8. `rows.pipeline.RowPipeline.frames`: parsed, told apart from rejects, transformed, and reduced to one row per key.
9. `ResultStore.commit`, in the store's folder: tasks stage the rows, and one action of the store makes rows and offsets
   visible.
10. `run_state.RunState.committed`: what shows the run reads it there, `run_log` for log lines and the bar, `metrics`
    for Prometheus.
"""
