"""`make demo`: real traffic through real workers to the simulators, and the laws measured at their wire."""
