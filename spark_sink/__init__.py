"""The Spark job: committed records of a Kafka topic become rows of a table, each exactly once.

The table itself knows how far it has read: rows and Kafka offsets change in one atomic commit, and no checkpoint lies
beside it. This package imports nothing of Ratchet's other packages, so that it ships to a Spark cluster as one zip; it
needs pyspark, pyarrow, confluent-kafka and the store's package in the driver; pyarrow, and psycopg or PyMySQL for a
database, in the executors.
"""
