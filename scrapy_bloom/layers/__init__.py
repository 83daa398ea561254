"""Filters around another filter."""
