"""Events that leave the table: publishing with the commit, subscribed grains, readers, and what is trimmed.

Grains publish and subscribe by names of the front door ``farro.silo``; nobody but the host enters here.
"""
