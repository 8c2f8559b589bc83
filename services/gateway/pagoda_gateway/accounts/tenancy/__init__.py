"""Organisations, their tenants, what tiers limit them to, and the keys they come with.

Stores and changes them; every change is announced to all gateways. Knows no HTTP and no usage.
"""
