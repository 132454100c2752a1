"""The RocksDB-backed changelog table of last sequences: one per stream, and one partition of it per input partition.

A reader's way in: `partition.py` (what a lane's transaction moves), `committed_partition.py` (what of it is persisted,
saved and replayed), `map/map.py` and `map/kernels.py` (the map in memory, where a duplicate is found), `known.py` (map
and store together), `snapshots.py` and `store.py` (the store on disk), `recovery.py` (a replay of the changelog),
`eviction.py` (who is forgotten), `table.py` (what Faust sees of it).
"""
