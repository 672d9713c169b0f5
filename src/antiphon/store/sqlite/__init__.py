"""The store in one SQLite file, for one process.

One thread writes, a few read. May import the standard library's `sqlite3` and `antiphon.store`.
Begin with `store`.
"""
