"""What makes a repeated send harmless: ids, numbered producers, and how both survive a stop."""
