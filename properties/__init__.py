"""What every GEMM kernel must satisfy, over shapes, inputs and schedules (Hypothesis)."""
