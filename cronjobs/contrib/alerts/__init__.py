"""Who hears of findings: what is to be sent and when, its words, and the ways out. Nothing here fails a job."""
