"""Send findings to channels: decide what to send and when, write the text, deliver. No error here fails a job."""
