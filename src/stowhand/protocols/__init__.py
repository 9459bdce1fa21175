"""Protocols of stores, handlers and flows, and the values that they exchange."""
