"""What runs on this machine: the embedded Kafka, the jars and the Java it needs, child processes."""
