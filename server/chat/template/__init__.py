"""Chat templates: rendering, capabilities, and the provenance of each piece of a prompt.

Exports nothing by itself: the web process takes `provenance` from here, and must not load Jinja.
"""
