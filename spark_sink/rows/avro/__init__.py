"""Values in Avro: schemas in the registry's framing, decoded in Spark's tasks."""
