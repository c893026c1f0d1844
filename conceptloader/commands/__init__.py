"""The commands of what is no add-on, a file each: init, build, verify, inspect, doctor. Open verify.py first."""
