"""One run of the job.

A record goes from Kafka to the commit through these files, in this order:

1. `options.job_spec`: makes a `job.spec.JobSpec` from a command line, or from the document of `ratchet sink`.
2. `cli.main`: makes four objects from the spec and starts step 3. They are the `RowPipeline` for the records, the
   store, the `TopicPlanner`, which asks Kafka, and the `RunState`, which notes each further step. The store is still
   closed; `stores.open_store` finds its class in `stores.registry`.
3. `job.run_batch` and `run_stream`, or `structured.run_structured`: check the topic for new records, and end the run.
4. `start`: `require_startable` refuses mistakes that are known without Spark, `with_columns` infers columns that the
   settings do not name, and `take_over` opens the store: `ResultStore.open` returns the table's offsets.
5. `plan`: `TopicPlanner.offset_range` returns the topic's range, and `resume` the next offset of each partition.
6. `commit.commit_slices`: runs steps 7 to 10 for each slice of that range. A query of Structured Streaming makes
   micro-batches in place of slices, and passes each to `commit.commit_records`.
7. `reading.records`: exactly the committed records of the slice, as a DataFrame of Spark's Kafka source.
8. `rows.pipeline.RowPipeline.frames`: parses the records, separates the rejects, transforms the rest, and reduces the
   rows to one per key.
9. `ResultStore.commit`, in the store's folder: tasks stage the rows, and one action of the store makes rows and offsets
   visible.
10. `run_state.RunState.note_commit`: notes the commit. `run_log` reads the state for log lines and the bar, `metrics`
    for Prometheus.
"""
