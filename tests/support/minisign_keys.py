"""Keys that minisign 0.11 made for tests, and that sign nothing else."""

from __future__ import annotations

PLAIN = """untrusted comment: minisign encrypted secret key
RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA6IcWfn3rvcL3Sjgx3PPr4sxFm9ct8rtDiTBhQnEfgsEJ\
kTTm4ZhApQuQL5V4PLdRbcQXOYNw9ePfKdpTKDP3iUJjMRLl/W/VAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
"""
"""Of `minisign -G -W`: no password."""
PLAIN_PUBLIC = "RWTohxZ+feu9wguQL5V4PLdRbcQXOYNw9ePfKdpTKDP3iUJjMRLl/W/V"
LOCKED = """untrusted comment: minisign encrypted secret key
RWRTY0IyjK1WXcD/N50eAehiZ9MQchOpgqvN6B/TLKMbZ/73ttcAAAACAAAAAAAAAEAAAAAAE2Z1quEGey2rz/DkmRC8KigM53n7djZZSa3c8SPsWDlrypAK\
sflx1lHxMnhYLQ/DFVjA5Pj7ENRA3YSEVuOnAb43nPb7SqbN7RAD4vBQ2TE1MpCE4jQlocBTUVU2Kl4cDJVgk0lqmLs=
"""
"""The password is "pass"."""
LOCKED_PUBLIC = "RWTLWpIekbgTZiuNd3Pe6yU6YnUMG2SChTihMWDKrPYJPse6Y0DRYx/M"
