"""The public import: what a program that uses Soong needs, re-exported."""
