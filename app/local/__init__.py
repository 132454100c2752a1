"""Programs on this machine: the embedded Kafka, jars and Java, child processes."""
