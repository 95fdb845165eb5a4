"""Figures for Prometheus and what reads its format."""
