"""Scripted agents for tests, imported by workers through SOONG_FUNCTIONS."""
