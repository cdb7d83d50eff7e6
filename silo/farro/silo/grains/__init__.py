"""What an author writes against.  Knows no mailbox, no storage and no network."""
