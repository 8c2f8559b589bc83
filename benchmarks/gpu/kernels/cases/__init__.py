"""One `bench_<op>.py` for each operator, with the cases that it declares."""
