"""Whose text is judged by what: the policy file, and policies made of it."""
