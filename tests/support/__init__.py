"""What tests, demos and benchmarks share: sites, servers, crawls, faults."""
