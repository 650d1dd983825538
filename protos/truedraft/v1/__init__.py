"""Generated from the .proto files beside this one by protos/generate.py."""
