"""What an operator may choose about the gateway, and the limits that follow."""
