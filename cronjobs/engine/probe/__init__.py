"""The idle tick's fast path: finds out whether there is anything to do. It imports nothing of the rest."""
