"""RocksDB-backed changelog table of last sequences: one per stream, a partition per input partition.

Start reading at: `partition.py` (the state that a lane's transaction moves), `committed_partition.py` (its persisted
part, saved and replayed), `map/map.py` (the map in memory; `rule/kernels.py` finds a duplicate in it),
`known.py` (map and store together), `snapshots.py` and `store.py` (the store on disk), `recovery.py` (a replay of the
changelog), `eviction.py` (forgotten identities), `table.py` (Faust's view of it).
"""
