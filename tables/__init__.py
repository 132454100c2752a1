"""Last sequences of identities, kept in memory, in RocksDB and in a changelog topic: one table per stream.

The table has one partition for each input partition. Start reading at `partition.py` (the state that a lane's
transaction changes) and `committed_partition.py` (its persisted part, saved and replayed). Then read `map/map.py` (the
map in memory; `rule/kernels.py` finds a duplicate in it), `known.py` (map and store together), `snapshots.py` and
`store.py` (the store on disk), `recovery.py` (a replay of the changelog), `eviction.py` (forgotten identities),
`table.py` (Faust's view of the table).
"""
