"""What tests share: sites, servers, crawls, faults."""
