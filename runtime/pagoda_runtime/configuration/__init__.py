"""Settings from the environment, and the model folder that they name.

Owns how variables are named, read and refused. Does not know which settings a service has: each
declares its own model in its `config`.
"""
