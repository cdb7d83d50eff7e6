"""Reminders from elsewhere become farro's: Orleans' ADO.NET table on PostgreSQL.  For the command line."""
