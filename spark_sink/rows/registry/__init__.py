"""Values of a schema registry: many schemas in one topic, each value with the id of its schema."""
