"""Who lives, who owns which partition, and how a call finds its way.

Entered from the host, which opens it after the rooms below; the gateway stands on it.
"""
