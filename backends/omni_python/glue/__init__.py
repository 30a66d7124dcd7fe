"""Everything that touches Triton's python backend API (`triton_python_backend_utils`)."""
