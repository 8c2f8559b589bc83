"""What a worker says of itself: metrics, spans of stages, steps' timelines."""
