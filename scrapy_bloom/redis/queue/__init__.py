"""The request queue beside the filter in Redis: any number of workers push and take."""
