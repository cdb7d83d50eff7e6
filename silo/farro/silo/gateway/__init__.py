"""Where clients come in: the listening socket, the wire's silo side, and its limits.

Knows the wire and one thing of the silo, the target that takes calls.  Only the host builds it.
"""
