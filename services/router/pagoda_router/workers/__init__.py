"""The workers that are alive, and the load of choices that they have not reported yet."""
