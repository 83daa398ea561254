"""The files of a job directory: what a local filter keeps between runs, and Scrapy's own files."""
