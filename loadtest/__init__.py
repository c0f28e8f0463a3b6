"""Programs that use a server the way its users do: the demo, the load test and the benchmark. They speak HTTP only."""
