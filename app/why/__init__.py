"""`ratchet why`: what became of one record, from the input to the row, read from the topics and the result table."""
