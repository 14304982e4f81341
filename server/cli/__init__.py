"""The command line `nap-llm`: a command a module, each with `add_parser(commands)` and `run(options)`.

The entry point is `server.cli.main:main`; it is not exported here, where it would hide its own module.
"""
