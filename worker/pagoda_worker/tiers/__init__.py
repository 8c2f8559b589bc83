"""Which blocks this worker holds, and how they reach the kvstore and the routers, and come back."""
