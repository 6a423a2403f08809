"""The smallest kernel that needs each ordering rule, with and without what the rule asks for."""
