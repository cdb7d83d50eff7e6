"""The store in a PostgreSQL schema.  Only :mod:`farro.providers.opening` enters; use PostgresProvider.  It
needs asyncpg, the extra ``farro[postgres]``.
"""
