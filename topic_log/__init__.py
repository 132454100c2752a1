"""Reading of committed records from topics, between known offsets and without joining a group.

`clients` requests partitions and offsets, `reading` reads records, and `second_client` reads the batches that
librdkafka does not read to their end. Lanes and surveys read columns with `transport.client.partition_reader`.
"""
