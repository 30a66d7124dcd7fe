"""Starting a tritonserver, and the HTTP front beside it."""
