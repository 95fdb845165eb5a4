"""The idle tick's fast path: finds out whether there is anything to do. It imports no other part of cronjobs."""
