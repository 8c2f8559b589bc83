"""Models of known shape and random weights, and what a step of them must cost."""
