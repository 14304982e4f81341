"""Keywords of JSON Schema as value sets, a module a group: what a keyword asserts and, beside it, its negation.

A negation is a series of value sets whose union holds wherever the keyword fails.
"""
