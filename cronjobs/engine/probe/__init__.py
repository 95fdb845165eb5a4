"""Is there anything to do? The idle tick's fast path, which imports nothing of the rest."""
