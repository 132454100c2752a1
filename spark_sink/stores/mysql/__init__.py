"""MySQL and MariaDB: offsets in a table of the same InnoDB transaction."""
