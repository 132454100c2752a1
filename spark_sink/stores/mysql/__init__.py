"""MySQL and MariaDB store, which changes rows and offsets in one InnoDB transaction."""
