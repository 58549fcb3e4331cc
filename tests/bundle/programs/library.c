/* Stands in for librknnrt.so: says its version and where it was loaded from. */
const char *stand_in_version(void);
int stand_in_sum(int a, int b);

const char *stand_in_version(void) { return "librknnrt version: 2.3.2 (stand-in@2026-01-01T00:00:00)"; }

int stand_in_sum(int a, int b) { return a + b; }
