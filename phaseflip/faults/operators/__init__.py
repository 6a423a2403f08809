"""Generic mutation operators, which find their sites by themselves, and the control. Files are found by themselves."""
