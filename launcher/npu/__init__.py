"""The NPU as its driver and its runtime show it: probe, self-test, memory domains."""
