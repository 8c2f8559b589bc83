"""Which proposed tokens a step verifies: what is worth its time, and what there is room for."""
