"""The proof: what scrapy-bloom costs and keeps, beside everything a user would pick instead."""
