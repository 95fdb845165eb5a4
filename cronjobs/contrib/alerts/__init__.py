"""Send findings to channels: decide what to send and when, write the text, and deliver the messages.

An error here never makes a job fail.
"""
