"""RMS norm of rows, alone or after the residual, in the dtype of the input or to fp8."""
