"""Committed records of topics, read from known offsets to known ends; no group is joined.

`clients` asks for partitions and offsets, `reading` reads records, `second_client` reads the batches that librdkafka
does not read to their end. Lanes and surveys read columns with `transport.client.partition_reader`.
"""
