"""Rows of a table made from Kafka records: columns, formats, transformations, write modes."""
