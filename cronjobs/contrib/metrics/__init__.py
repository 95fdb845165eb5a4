"""Metrics for Prometheus and other readers of its format."""
