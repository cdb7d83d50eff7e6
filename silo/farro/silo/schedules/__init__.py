"""When reminders are due: cron texts, intervals, one-shots, and what becomes of missed occurrences.

Pure: nothing here waits, reads a clock, draws chance of its own or stores anything.  The lowest floor of the
silo; every room above may enter.
"""
