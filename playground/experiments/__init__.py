"""Many runs: benchmarks and checks on traces of real races."""
