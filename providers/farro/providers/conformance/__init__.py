"""The kit that every store must pass.  Only tests enter, by kit.py; nothing else in farro imports it."""
