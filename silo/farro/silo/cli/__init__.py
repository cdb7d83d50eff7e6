"""The command line, one file per command group.  The top of the house: nobody imports from here."""
