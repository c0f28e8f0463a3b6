"""Consumer groups: `machines` decide and are pure, `coordinator` writes and applies, `protocol` is what others see."""
