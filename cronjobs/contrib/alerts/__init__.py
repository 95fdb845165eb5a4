"""Send findings to channels: decide what to send and when, write the text, deliver.

An error here never makes a job fail.
"""
