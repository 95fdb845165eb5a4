"""The fast path of an idle tick: find out whether there is anything to do. It imports no other part of cronjobs."""
