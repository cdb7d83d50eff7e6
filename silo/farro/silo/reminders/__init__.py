"""The line from the reminder table to a tick's turn.  Entered by gateway and host."""
