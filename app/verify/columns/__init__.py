"""Quick comparison of verify, over columns of many records. It accepts only a partition without any finding."""
