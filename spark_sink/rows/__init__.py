"""From a Kafka record to the rows of a table: columns, formats, transformations, write modes."""
