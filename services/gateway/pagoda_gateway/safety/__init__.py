"""What may be asked and answered: policies of tenants, and what judges text by them.

Knows no HTTP route and no worker. Who has no policy never comes here.
"""
