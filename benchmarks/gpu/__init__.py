"""`make check-gpu`: proves and measures kernels, engine and KV transfer on a GPU host.

`harness` runs points in processes and reports them; `kernels`, `engine` and `transfer` say what the
points are; `model` holds the models that the last two run.
"""
