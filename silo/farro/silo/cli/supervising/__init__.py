"""Several silo processes on one machine, started, watched and restarted by one: ``farro silo --processes``.

``restarts`` and ``silence`` decide, ``lines`` cuts output; they are pure.  ``child``, ``output`` and
``supervisor`` carry out; ``signs`` is the child's side; ``command`` is what the command line enters by.
"""
