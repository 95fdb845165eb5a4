"""The fast path of an idle tick: find out whether the tick has work. It imports no other part of cronjobs."""
