"""Use of Spark: its session, its Kafka options, its errors, and the job's package for a cluster."""
