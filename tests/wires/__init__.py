"""Agents on the providers' real clients, against servers that are not ours."""
