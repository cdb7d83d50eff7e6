"""``farro demo``: a silo is killed in the middle of its ticks, and a proof that nothing was lost."""
