"""The native API below `/mq/v1`, and what operators and orchestrators ask."""
