"""The store in one SQLite file.  Only :mod:`farro.providers.opening` and the front door enter; use
SqliteProvider.
"""
