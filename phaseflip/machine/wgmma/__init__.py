"""The tensor core of Hopper: wgmma and where its operands lie."""
