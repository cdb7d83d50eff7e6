"""One grain awake, one turn at a time, one commit a turn.  Entered by reminders, gateway and host."""
