"""Who a caller is and what that caller may do."""
