"""`ratchet why`: the trace of one record from the input to the row, read from the topics and the result tables."""
